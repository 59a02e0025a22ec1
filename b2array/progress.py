"""How far a long transfer has come: a bar where rich is installed and somebody looks, else lines, on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

__all__ = ["Progress", "track"]

_INTERVAL = 2.0
"""Seconds between two lines."""

_Show = Callable[[int], None]


class Progress:
    """A count that threads may advance at the same time. Made by `track`."""

    def __init__(self, show: _Show | None) -> None:
        self.done = 0
        self._show = show
        self._mutex = threading.Lock()

    def advance(self, n: int = 1) -> None:
        """Count `n` more bytes, chunks or items."""
        with self._mutex:
            self.done += n
            if self._show is not None:
                self._show(self.done)


@contextmanager
def track(
    total: int | None, label: str, enabled: bool = True, *, unit: Literal["bytes", "chunks", "items"] = "bytes"
) -> Iterator[Progress]:
    """Show how far something has come.

    Parameters
    ----------
    total : int or None
        What the count reaches in the end; None if that is not known.
    label : str
        What it is about.
    enabled : bool, default True
        Whether anything is shown.
    unit : {"bytes", "chunks", "items"}
        What is counted.

    Examples
    --------
    >>> with track(300, "copying", enabled=False) as progress:
    ...     for _ in range(3):
    ...         progress.advance(100)
    >>> progress.done
    300
    """
    if not enabled:
        yield Progress(None)
        return
    with _bar(total, label, unit) or _lines(total, label, unit) as show:
        yield Progress(show)


def _bar(total: int | None, label: str, unit: str) -> _Bar | None:
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        return None
    console = Console(stderr=True)
    if not (find_spec("ipywidgets") if console.is_jupyter else console.is_terminal):
        return None  # a log: a bar would show nothing until the end
    counted = (
        (progress.DownloadColumn(), progress.TransferSpeedColumn())
        if unit == "bytes"
        else (progress.MofNCompleteColumn(),)
    )
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        *counted,
        progress.TimeRemainingColumn(),
    )
    return _Bar(progress.Progress(*columns, console=console), total, label)


class _Bar:
    """A bar of rich."""

    def __init__(self, shown: RichProgress, total: int | None, label: str) -> None:
        self._shown = shown
        self._task = shown.add_task(label, total=total)

    def __enter__(self) -> _Show:
        self._shown.start()
        return self._update

    def _update(self, done: int) -> None:
        self._shown.update(self._task, completed=done)

    def __exit__(self, *_: object) -> None:
        self._shown.stop()


@contextmanager
def _lines(total: int | None, label: str, unit: str) -> Iterator[_Show]:
    begun = last = time.monotonic()
    reached = 0

    def line(end: str = "") -> None:
        of = "" if total is None else f" of {_text(total, unit)}"
        share = f" ({100 * reached // total} %)" if total else ""
        sys.stderr.write(f"{label}: {_text(reached, unit)}{of}{share}{end}\n")
        sys.stderr.flush()

    def show(done: int) -> None:
        nonlocal last, reached
        reached = done
        if time.monotonic() - last >= _INTERVAL:
            last = time.monotonic()
            line()

    try:
        yield show
    finally:
        line(f", {time.monotonic() - begun:.1f} s")


def _text(count: int, unit: str) -> str:
    if unit != "bytes":
        return f"{count} {unit}"
    return f"{count} bytes" if count < 10**6 else f"{count / 1e6:.1f} MB"
