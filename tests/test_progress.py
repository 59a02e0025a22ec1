"""Progress of long transfers."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from b2array import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_say_how_far_it_is_and_when_it_ended(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_INTERVAL", 0)
    with progress.track(4_000_000, "copying") as shown:
        shown.advance(1_000_000)
        shown.advance(3_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["copying: 1.0 MB of 4.0 MB (25 %)", "copying: 4.0 MB of 4.0 MB (100 %)"]
    assert lines[2].startswith("copying: 4.0 MB of 4.0 MB (100 %), ")
    assert lines[2].endswith(" s")


def test_lines_are_rare(capsys):
    with progress.track(1000, "verifying", unit="items") as shown:
        for _ in range(1000):
            shown.advance()
    assert capsys.readouterr().err.count("\n") == 1


def test_an_unknown_total_is_left_out(capsys):
    with progress.track(None, "reading") as shown:
        shown.advance(500)
    assert capsys.readouterr().err.startswith("reading: 500 bytes, ")


def fail_after(count):
    with progress.track(10, "reading", unit="items") as shown:
        shown.advance(count)
        raise OSError("gone")


def test_an_error_leaves_a_line_that_says_how_far_it_came(capsys):
    with pytest.raises(OSError, match="gone"):
        fail_after(4)
    assert capsys.readouterr().err.startswith("reading: 4 items of 10 items (40 %), ")


def test_nothing_is_shown_unless_enabled(capsys):
    with progress.track(10, "reading", False) as shown:
        shown.advance(10)
    assert shown.done == 10
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("unit", ["bytes", "items"])
def test_a_terminal_shows_a_bar(monkeypatch, unit):
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress.track(2000, "copying", unit=unit) as shown:
        shown.advance(2000)
    assert "copying" in terminal.getvalue()
    assert "━" in terminal.getvalue()


def test_without_rich_a_terminal_shows_lines(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress.track(2000, "copying") as shown:
        shown.advance(2000)
    assert terminal.getvalue().startswith("copying: 2000 bytes of 2000 bytes (100 %), ")


def test_threads_lose_no_count():
    with progress.track(4000, "counting", False) as shown:
        threads = [threading.Thread(target=lambda: [shown.advance() for _ in range(1000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert shown.done == 4000
