"""What the tests of `verify`, `repair` and `vacuum` begin with."""

from __future__ import annotations

import pytest
from damage import LAYOUTS

from b2array import config


@pytest.fixture
def _no_cache(monkeypatch):
    monkeypatch.setattr(config, "cache_bytes", 0)


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.b2nd"
