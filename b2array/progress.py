"""Shows the progress of a long transfer with tqdm, in terminals, notebooks and logs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

__all__ = ["Progress", "track"]


class Progress:
    """A count that several threads may advance. Made by `track`."""

    def __init__(self, show: Callable[[int], object] | None) -> None:
        self.done = 0
        self._show = show
        self._mutex = threading.Lock()

    def advance(self, n: int = 1) -> None:
        """Count `n` more bytes, chunks or items."""
        with self._mutex:
            self.done += n
            if self._show is not None:
                self._show(n)


@contextmanager
def track(
    total: int | None,
    label: str,
    enabled: bool = True,
    *,
    unit: Literal["bytes", "chunks", "items"] = "bytes",
) -> Iterator[Progress]:
    """Show the progress of an operation on stderr.

    Parameters
    ----------
    total : int or None
        The final count, or None if it is unknown.
    label : str
        A description of the operation.
    enabled : bool, default True
        Whether to show anything.
    unit : {"bytes", "chunks", "items"}
        The unit of the count.

    Raises
    ------
    ModuleNotFoundError
        The package tqdm is not installed.

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
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ModuleNotFoundError("progress needs the package tqdm: pip install 'b2array[progress]'") from None
    options: dict[str, Any] = {"unit": f" {unit}"}
    if unit == "bytes":
        options = {"unit": "B", "unit_scale": True}
    with tqdm(total=total, desc=label, **options) as bar:
        yield Progress(bar.update)
