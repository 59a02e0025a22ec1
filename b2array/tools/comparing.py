"""`diff` of two places: compare the members, items and attributes of arrays or groups in any formats."""

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

Array = npt.NDArray[Any]
Attrs = Mapping[str, Any]

_PIECE_NBYTES = 16 * 2**20
"""The maximum number of bytes to compare at a time."""


class Difference(NamedTuple):
    """A difference in a member; the name is empty for the array or top-level group."""

    name: str
    what: str
    detail: str


def differences(first: str, second: str, options: Storage, others: Storage) -> Iterator[Difference]:
    """Yield the differences between two arrays or groups. Values are compared bitwise, except that NaN equals NaN."""
    kind, address = find(first, None, options, exists=True)
    other_kind, other_address = find(second, None, others, exists=True)
    with kind.tree(address, options) as a, other_kind.tree(other_address, others) as b:
        for tree in (a, b):
            if tree.error is not None:
                raise tree.error
        # The only array of a file may have no name.
        have_one_array = len(a.names) == len(b.names) == 1
        if have_one_array and "" in (*a.names, *b.names):
            yield from _of_arrays("", a.only(first), b.only(second))
            return
        for name in sorted({*a.names, *b.names}):
            if name in a.names and name in b.names:
                yield from _of_arrays(name, a.open(name), b.open(name))
            else:
                there = first if name in a.names else second
                yield Difference(name, "only in", there)
        for name in sorted({*a.attrs, *b.attrs}):
            yield from _of_attrs(name, _attrs_of(a, name), _attrs_of(b, name))


def _attrs_of(tree: Any, name: str) -> dict[str, Any]:
    """Return the attributes of a group in a tree, or no attributes if the group is not in the tree."""
    return dict(tree.attrs[name]()) if name in tree.attrs else {}


def _of_arrays(name: str, a: ArraySource, b: ArraySource) -> Iterator[Difference]:
    for what, one, other in (
        ("shape", a.shape, b.shape),
        ("dtype", a.dtype, b.dtype),
        ("dims", a.dims, b.dims),
        ("fill value", a.fill, b.fill),
    ):
        # Object arrays, because shapes, dtypes and fill values have no other common type.
        if not _is_equal(np.asarray(one, object), np.asarray(other, object)):
            yield Difference(name, what, f"{one} and {other}")
    yield from _of_attrs(name, a.attrs, b.attrs)
    if a.shape == b.shape:
        yield from _of_items(name, a, b)


def _of_items(name: str, a: ArraySource, b: ArraySource) -> Iterator[Difference]:
    """Compare the items, one piece at a time."""
    itemsize = max(1, a.dtype.itemsize, b.dtype.itemsize)
    most = max(1, _PIECE_NBYTES // itemsize)
    total = 0
    first = None
    for box in boxes(a.shape, most, a.chunks):
        differs = ~_equal_items(a.read(box), b.read(box))
        if not differs.any():
            continue
        total += int(np.count_nonzero(differs))
        if first is None:
            where = np.argwhere(differs)[0].tolist()
            first = [part.start + i for part, i in zip(box, where, strict=True)]
    if first is None:
        return
    # An array of fill values may have more items than 64 bits can count.
    size = int(np.prod(a.shape, dtype=object))
    position = ", ".join(map(str, first)) or "()"
    yield Difference(name, "items", f"{total} of {size}, the first at [{position}]")


def _equal_items(x: Array, y: Array) -> npt.NDArray[np.bool_]:
    same = np.asarray(x == y, bool)
    with_nan = "fcmM"
    if x.dtype.kind in with_nan and y.dtype.kind in with_nan:
        both_nan = (x != x) & (y != y)  # noqa: PLR0124 - NaN and NaT
        same |= both_nan
    return np.broadcast_to(same, x.shape)


def _is_equal(x: Array, y: Array) -> bool:
    return x.shape == y.shape and plain(x.tolist()) == plain(y.tolist())


def _of_attrs(name: str, a: Attrs, b: Attrs) -> Iterator[Difference]:
    for key in sorted({*a, *b}):
        what = f"attrs.{key}"
        if key not in a or key not in b:
            yield Difference(name, what, "only in one of them")
            continue
        value = a[key]
        other = b[key]
        if plain(value) != plain(other):
            yield Difference(name, what, f"{value!r} and {other!r}")
