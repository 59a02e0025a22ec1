"""Progress of long transfers."""

from __future__ import annotations

import sys
import threading

import pytest

from b2array import progress


@pytest.mark.parametrize(
    ("unit", "shown"), [("bytes", "4.00M/4.00M"), ("items", "4000000/4000000"), ("chunks", " chunks")]
)
def test_a_bar_says_how_far_it_is(capsys, unit, shown):
    with progress.track(4_000_000, "copying", unit=unit) as counted:
        counted.advance(1_000_000)
        counted.advance(3_000_000)
    told = capsys.readouterr().err
    assert "copying: 100%" in told
    assert shown in told


def test_an_unknown_total_is_left_out(capsys):
    with progress.track(None, "reading") as counted:
        counted.advance(500)
    told = capsys.readouterr().err
    assert "reading: 500B" in told
    assert "%" not in told


def fail_after(count):
    with progress.track(10, "reading", unit="items") as counted:
        counted.advance(count)
        raise OSError("gone")


def test_an_error_leaves_a_bar_that_says_how_far_it_came(capsys):
    with pytest.raises(OSError, match="gone"):
        fail_after(4)
    assert "4/10" in capsys.readouterr().err.rpartition("\r")[2]


def test_nothing_is_shown_unless_enabled(capsys):
    with progress.track(10, "reading", False) as counted:
        counted.advance(10)
    assert counted.done == 10
    assert capsys.readouterr().err == ""


def test_without_tqdm_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ModuleNotFoundError, match=r"b2array\[progress\]"), progress.track(1, "reading"):
        pass


def test_threads_lose_no_count():
    with progress.track(4000, "counting", False) as counted:
        threads = [threading.Thread(target=lambda: [counted.advance() for _ in range(1000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counted.done == 4000
