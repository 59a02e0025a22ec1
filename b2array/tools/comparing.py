"""`diff` of two places: which members, items and attributes of two arrays or groups differ, whatever their formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from b2array.exchange.formats import ArraySource, Storage
from b2array.exchange.places import find
from b2array.grid.partition import boxes
from b2array.tools.describing import plain

__all__ = ["Difference", "differences"]

_PIECE_NBYTES = 16 * 2**20
"""Bytes to compare at a time."""


class Difference(NamedTuple):
    """A difference, and the member that has it; the name is empty for an array or group itself."""

    name: str
    what: str
    detail: str


def differences(first: str, second: str, options: Storage, others: Storage) -> Iterator[Difference]:
    """Yield what differs between two arrays or groups. Values are compared bit by bit, except that NaN equals NaN."""
    (kind, address), (other_kind, other_address) = (
        find(first, None, options, exists=True),
        find(second, None, others, exists=True),
    )
    with kind.tree(address, options) as a, other_kind.tree(other_address, others) as b:
        for tree in (a, b):
            if tree.error is not None:
                raise tree.error
        if len(a.names) == len(b.names) == 1 and "" in (*a.names, *b.names):
            yield from _of_arrays("", a.only(first), b.only(second))
            return
        for name in sorted({*a.names, *b.names}):
            if name in a.names and name in b.names:
                yield from _of_arrays(name, a.open(name), b.open(name))
            else:
                yield Difference(name, "only in", first if name in a.names else second)
        for name in sorted({*a.attrs, *b.attrs}):
            of_each = [dict(tree.attrs[name]()) if name in tree.attrs else {} for tree in (a, b)]
            yield from _of_attrs(name, *of_each)


def _of_arrays(name: str, a: ArraySource, b: ArraySource) -> Iterator[Difference]:
    for what, one, other in (
        ("shape", a.shape, b.shape),
        ("dtype", a.dtype, b.dtype),
        ("dims", a.dims, b.dims),
        ("fill value", a.fill, b.fill),
    ):
        if not _is_equal(np.asarray(one, object), np.asarray(other, object)):
            yield Difference(name, what, f"{one} and {other}")
    yield from _of_attrs(name, a.attrs, b.attrs)
    if a.shape == b.shape:
        yield from _of_items(name, a, b)


def _of_items(name: str, a: ArraySource, b: ArraySource) -> Iterator[Difference]:
    """Compare the items, a piece at a time."""
    most = max(1, _PIECE_NBYTES // max(1, a.dtype.itemsize, b.dtype.itemsize))
    total, first = 0, None
    for box in boxes(a.shape, most, a.chunks):
        same = _equal_items(a.read(box), b.read(box))
        if same.all():
            continue
        total += int(np.count_nonzero(~same))
        if first is None:
            where = np.argwhere(~same)[0]
            first = [part.start + int(i) for part, i in zip(box, where, strict=True)]
    if first is not None:
        share = f"{total} of {int(np.prod(a.shape, dtype=object))}"
        yield Difference(name, "items", f"{share}, the first at [{', '.join(map(str, first)) or '()'}]")


def _equal_items(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    same = np.asarray(x == y, bool)
    if x.dtype.kind in "fcmM" and y.dtype.kind in "fcmM":
        same |= (x != x) & (y != y)  # noqa: PLR0124 - NaN and NaT
    return np.broadcast_to(same, x.shape)


def _is_equal(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> bool:
    return x.shape == y.shape and plain(x.tolist()) == plain(y.tolist())


def _of_attrs(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    for key in sorted({*a, *b}):
        if key not in a or key not in b:
            yield Difference(name, f"attrs.{key}", "only in one of them")
        elif plain(a[key]) != plain(b[key]):
            yield Difference(name, f"attrs.{key}", f"{a[key]!r} and {b[key]!r}")
