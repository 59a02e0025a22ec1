"""`Rows`: rows of different lengths, in a group with one array of values and one of offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

from b2array.array.array import NDArray
from b2array.array.array_copying import as_items
from b2array.array.many import read_many
from b2array.commit.resize import make_joint
from b2array.display.text_tables import count_text
from b2array.errors import ConflictError, FormatError
from b2array.format import dtypes
from b2array.group.group import Group
from b2array.group.group_forks import Changes
from b2array.store.base import spaced

__all__ = ["Rows"]

Array = npt.NDArray[Any]

VALUES, OFFSETS = "values", "offsets"
_TRIES = 50
"""The number of attempts to append while other writers append as well."""


class Rows:
    """Rows of different lengths: the tokens of texts, the spikes of cells, the corners of polygons.

    The rows are in a group with two arrays, which all programs can read: ``values`` has the items of all rows, one row
    after the other, and ``offsets`` says where each row begins: row ``i`` is ``values[offsets[i]:offsets[i + 1]]``.
    Values may have more dimensions: an item of a row may be a point or a vector. They may also be text.

    Arrow and Awkward Array take the two arrays unchanged: ``pyarrow.LargeListArray.from_arrays(rows.offsets[...],
    rows.values[...])``. Their arrays of lists are rows as well.

    Parameters
    ----------
    group : Group
        The group, in a transaction or not.

    Raises
    ------
    KeyError
        The group has no such arrays; `Rows.create` makes them.
    FormatError
        The offsets are not one more than the rows, or are not integers.

    Examples
    --------
    >>> import b2array
    >>> group = b2array.open_group("memory://rows.b2d", "w")
    >>> rows = Rows.create(group, [[1.5, 2.5], [], [3.5]])
    >>> rows.append([[4.5, 5.5, 6.5]])
    4
    >>> rows[3], rows.lengths.tolist()
    (array([4.5, 5.5, 6.5]), [2, 0, 1, 3])
    >>> [row.tolist() for row in rows[[2, 0]]]
    [[3.5], [1.5, 2.5]]
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._values, self._offsets = _open_both(group)
        if self._offsets.dtype.kind not in "iu" or self._offsets.ndim != 1 or not len(self._offsets):
            raise FormatError(
                f"{self._offsets.url}: expected offsets of rows, one more than there are rows, found an array of shape "
                f"{self._offsets.shape} and type {self._offsets.dtype}"
            )

    @classmethod
    def create(
        cls,
        group: Group,
        rows: Iterable[Any] = (),
        *,
        dtype: npt.DTypeLike | None = None,
        item_shape: tuple[int, ...] = (),
        **options: Any,
    ) -> Self:
        """Make the two arrays in a group, in one commit.

        Parameters
        ----------
        group : Group
            The group, open for writing.
        rows : iterable of array-like
            The first rows.
        dtype : dtype-like, optional
            The type of the items; by default the type of the first rows, or float64.
        item_shape : tuple of int, default ()
            The shape of an item, if it is an array: (2,) for the points of polygons.
        **options
            Options of `Group.create` for the values, such as ``chunks`` and ``cparams``.
        """
        joined, lengths = _items_of(rows, None if dtype is None else np.dtype(dtype), item_shape)
        shape = (0, *item_shape)
        with _changes_of(group) as changes:
            values = changes.create(VALUES, shape, joined.dtype, **options)
            offsets = changes.create(OFFSETS, data=np.zeros(1, np.int64))
            _extend(values, offsets, joined, lengths)
            if changes is group:
                # Another thread may commit the transaction under way right after the block.
                return cls(group)
        return cls(group)

    @property
    def values(self) -> NDArray:
        """The items of all rows, one row after the other."""
        return self._values

    @property
    def offsets(self) -> NDArray:
        """The position of the first item of each row, and the number of all items."""
        return self._offsets

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of items in each row; this reads all offsets."""
        bounds = self._offsets[...].astype(np.int64)
        return np.diff(bounds)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __repr__(self) -> str:
        return f"<b2array.Rows {self._group.url}: {count_text(len(self), 'row')} of {self._values.dtype}>"

    @overload
    def __getitem__(self, key: int) -> Array: ...

    @overload
    def __getitem__(self, key: slice | list[int] | Array) -> list[Array]: ...

    def __getitem__(self, key: Any) -> Any:
        """Return one row, or a list of rows for a slice, a list of numbers or a mask.

        Rows that are next to each other are read as one piece, and all pieces together.

        Raises
        ------
        IndexError
            A number is out of bounds.
        FormatError
            The offsets decrease, or exceed the values.
        """
        numbers = np.arange(len(self))[key]
        wanted = np.atleast_1d(numbers)
        starts, stops = self._bounds(wanted)
        rows = self._read(starts, stops)
        return rows if np.ndim(numbers) else rows[0]

    def __iter__(self) -> Iterator[Array]:
        """Yield each row; the rows are read in steps of many."""
        step = 1024
        for first in range(0, len(self), step):
            yield from self[first : first + step]

    def append(self, rows: Iterable[Any]) -> int:
        """Append rows, in one commit, and return the new number of rows.

        Rows that other writers append at the same time are preserved.

        Parameters
        ----------
        rows : iterable of array-like
            The rows.

        Raises
        ------
        ValueError, TypeError, OverflowError
            The items do not fit the values: none of them is cut, wrapped or unmasked.
        """
        joined, lengths = _items_of(rows, self._values.dtype, self._values.shape[1:])
        for attempt in spaced(range(_TRIES)):
            try:
                with _changes_of(self._group) as changes:
                    _extend(_open_array(changes, VALUES), _open_array(changes, OFFSETS), joined, lengths)
                break
            except ConflictError:
                # Another writer has appended rows since the block began.
                if attempt == _TRIES - 1 or isinstance(self._group._home, Changes):
                    raise
        self.refresh()
        return len(self)

    def refresh(self) -> None:
        """Show the rows that other writers have appended."""
        if isinstance(self._group._home, Changes):
            return
        # Values first: rows whose values are missing could not be read.
        self._offsets.refresh()
        self._values.refresh()

    def _bounds(self, numbers: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        """Read and return the position of the first item of each row, and the position after its last item.

        Raises FormatError if the offsets decrease, or exceed the values.
        """
        if not numbers.size:
            return numbers, numbers
        first, last = int(numbers.min()), int(numbers.max())
        if last - first < 4 * numbers.size + 1024:
            offsets = self._offsets[first : last + 2].astype(np.int64)
            starts, stops = offsets[numbers - first], offsets[numbers - first + 1]
        else:
            pairs = self._offsets[np.stack([numbers, numbers + 1])].astype(np.int64)
            starts, stops = pairs
        if (starts > stops).any() or starts.min() < 0 or stops.max() > len(self._values):
            raise FormatError(
                f"{self._offsets.url}: expected offsets that increase up to {len(self._values)}, found others"
            )
        return starts, stops

    def _read(self, starts: Array, stops: Array) -> list[Array]:
        """Read the rows with these bounds: neighbours in one piece, and all pieces together."""
        if not starts.size:
            return []
        begins = np.flatnonzero(np.append(True, starts[1:] != stops[:-1]))
        ends = np.append(begins[1:], len(starts))
        keys = [slice(int(starts[i]), int(stops[j - 1])) for i, j in zip(begins, ends, strict=True)]
        pieces = read_many([(self._values, key) for key in keys])
        rows = []
        for piece, key, i, j in zip(pieces, keys, begins.tolist(), ends.tolist(), strict=True):
            rows += [piece[int(starts[n]) - key.start : int(stops[n]) - key.start] for n in range(i, j)]
        return rows


def _open_both(group: Group) -> tuple[NDArray, NDArray]:
    """Open the values and the offsets; if another writer commits between the two, refresh the group, and try again."""
    for attempt in spaced(range(_TRIES)):
        if attempt:
            group.refresh()
        try:
            return _open_array(group, VALUES), _open_array(group, OFFSETS)
        except ConflictError:
            # In a transaction, the members stay as they were when it began.
            if isinstance(group._home, Changes):
                raise
    raise ConflictError(f"{group.url}: other writers have changed the rows {_TRIES} times while they were opened")


def _open_array(group: Group, name: str) -> NDArray:
    """Open the values or the offsets in a group of rows; raise KeyError if the group has no such array."""
    array = group.get(name)
    if not isinstance(array, NDArray):
        raise KeyError(f"{group.url} has no array {name!r}: Rows.create(group) makes the arrays of rows")
    return array


@contextmanager
def _changes_of(group: Group) -> Iterator[Group]:
    """Yield a group for a block that changes it: in the transaction under way, or in a new one."""
    home = group._home
    if isinstance(home, Changes):
        with home.undivided.held:
            yield group
    else:
        with group.transaction() as changes:
            yield changes


def _items_of(rows: Any, dtype: np.dtype[Any] | None, item_shape: tuple[int, ...]) -> tuple[Array, list[int]]:
    """Return the items of rows of any kind in one array, and the length of each row.

    Raises ValueError for items of another shape, and TypeError if they cannot be converted to the `dtype`.
    """
    flattened = _flatten_lists(rows)
    if flattened is None:
        return _join(rows, dtype, item_shape)
    parts, lengths = flattened
    if dtype is None and parts:
        dtype = np.result_type(*(part.dtype for part in parts))
    joined, _ = _join(parts, dtype, item_shape)
    return joined, lengths


def _flatten_lists(rows: Any) -> tuple[list[Array], list[int]] | None:
    """Return the items, in one array or several, and the length of each row of Arrow's and Awkward's arrays of lists.

    Return None for other rows. Raises TypeError for an array of anything but lists, and ValueError for missing rows.
    Iteration over such arrays makes an object for each row or item.
    """
    library, _, _ = type(rows).__module__.partition(".")
    if library == "awkward":
        _require_lists(rows.ndim > 1, rows.type)
        awkward = import_module(library)
        try:
            items, counts = awkward.flatten(rows, axis=1), np.asarray(awkward.num(rows, axis=1))
            return [as_items(items, None)], counts.tolist()
        except ValueError as error:
            is_missing = any(mark in str(rows.type) for mark in ("?", "option["))
            advice = _MISSING if is_missing else _NESTED
            raise ValueError(f"expected lists of numbers or text, found {rows.type}: {advice}") from error
    if library == "pyarrow":
        parts = getattr(rows, "chunks", [rows])
        kind = getattr(rows, "type", "a table")
        inner: Any = getattr(kind, "value_type", None)
        _require_lists(inner is not None and all(hasattr(part, "value_lengths") for part in parts), kind)
        if inner.num_fields:
            has_fields = str(inner).startswith(("struct", "map", "sparse_union", "dense_union"))
            advice = _FIELDS if has_fields else _NESTED
            raise TypeError(f"expected lists of numbers or text, found {kind}: {advice}")
        if rows.null_count:
            raise ValueError(f"expected rows, found {rows.null_count} missing ones: replace them by empty rows")
        lengths = [length for part in parts for length in part.value_lengths().tolist()]
        return [as_items(part.flatten(), None) for part in parts], lengths
    return None


_NESTED = (
    "pass points and other items of one shape as NumPy arrays, with item_shape=, and store lists in lists as two groups"
    " of rows: the inner lists, and the numbers of them"
)
_FIELDS = "store each field as rows in a group"
_MISSING = "replace what is missing, as awkward.fill_none does"
"""What to do about rows of other items than numbers or text."""


def _require_lists(are_lists: bool, kind: object) -> None:
    """Raise TypeError, which names the kind of the items, unless they are lists."""
    if not are_lists:
        raise TypeError(f"expected lists of items, one for each row, found {kind}")


def _join(rows: Iterable[Any], dtype: np.dtype[Any] | None, item_shape: tuple[int, ...]) -> tuple[Array, list[int]]:
    """Return the items of rows in one array, and the length of each row.

    Without a `dtype`, NumPy chooses one for all rows. Raises the errors of `_items_of`.
    """
    collected, kinds, lengths = [], [], []
    is_sized = dtype is not None and dtypes.has_size(dtype)
    for row in rows:
        try:
            array = as_items(row, None if is_sized else dtype)
        except ValueError as error:
            if "inhomogeneous" not in str(error):
                raise
            raise ValueError(
                f"expected rows of items of shape {item_shape}, found lists of different lengths in a row: {_NESTED}"
            ) from error
        # An empty list says nothing about shape and type.
        if array.shape != (0,) and (array.shape[1:] != item_shape or not array.ndim):
            hint = f"; Rows.create makes rows of such items with item_shape={array.shape[1:]}" if array.ndim > 1 else ""
            raise ValueError(f"expected rows of items of shape {item_shape}, found a row of shape {array.shape}{hint}")
        lengths.append(len(array))
        if array.size:
            collected.append(row)
            kinds.append(array.dtype)
    if dtype is None or not is_sized:
        dtype = np.result_type(*kinds) if kinds else np.empty(0, dtype).dtype
    joined = np.empty((sum(lengths), *item_shape), dtype)
    stop = 0
    for row, kind in zip(collected, kinds, strict=True):
        # NumPy would try to read lists of text as numbers.
        if not np.can_cast(kind, dtype, "same_kind"):
            raise TypeError(f"Cannot cast array data from {kind!r} to {dtype!r} according to the rule 'same_kind'")
        # Each row alone: NumPy would find a type for all, in which large integers are rounded.
        values = make_joint(row, joined.shape, dtype, 0).values
        start, stop = stop, stop + len(values)
        joined[start:stop] = values
    return joined, lengths


def _extend(values: NDArray, offsets: NDArray, joined: Array, lengths: list[int]) -> None:
    """Append the items of rows to the values, and the ends of the rows to the offsets.

    Raises FormatError if the last offset is not the number of values.
    """
    if not lengths:
        return
    start = int(offsets[-1])
    if start != len(values):
        raise FormatError(f"{offsets.url}: expected {len(values)} as the last offset, found {start}")
    if len(joined):
        values.append(joined)
    offsets.append(start + np.cumsum(lengths))
