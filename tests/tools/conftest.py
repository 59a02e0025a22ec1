"""What the tests of `verify`, `repair` and `vacuum` begin with."""

from __future__ import annotations

import pytest
from damage import LAYOUTS

from b2array import __main__, config


@pytest.fixture
def _no_cache(monkeypatch):
    monkeypatch.setattr(config, "cache_bytes", 0)


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.b2nd"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Give a function that runs a command in an empty directory; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    # A program begins with nothing in its cache.
    monkeypatch.setattr(config, "cache_bytes", 0)

    def call(*arguments):
        capsys.readouterr()
        code = __main__.main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
