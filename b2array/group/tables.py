"""`Table`: a table of python-blosc2 (`blosc2.CTable`), for reading. It is a group whose members hold the columns.

A table has a description ``_meta``, a mask of the rows that were not deleted, ``_valid_rows``, and under ``_cols`` one
array or more for each column: the items, ``.notnull`` where some are missing, the bytes of text next to its offsets
(``.utf8``), or the words next to their codes (``_dict``).

Source: ``ctable_storage.py`` and ``schema.py`` of python-blosc2.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.array.array import NDArray
from b2array.array.objects import Items
from b2array.array.schunk import SChunk
from b2array.commit.handle import Handle, Mode
from b2array.display.tables import count_text
from b2array.errors import B2ArrayError, FormatError, LimitError, UnsupportedError, prefix_error

__all__ = ["DESCRIPTION", "Table", "is_table"]

DESCRIPTION = "_meta"
"""The member that describes a table."""
_ROWS = "_valid_rows"
_KIND = "ctable"
_NUMBERS = frozenset(
    [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    + ["float32", "float64", "complex64", "complex128", "bool", "string", "bytes", "ndarray"]
)
"""Kinds of columns that one array holds as they are."""
_UNITS = ("s", "ms", "us", "ns")
_TEXT = np.dtypes.StringDType()

Array = npt.NDArray[Any]


class Home(Protocol):
    """Where the members of a group are."""

    @property
    def url(self) -> str:
        """Where the group is, without secrets."""

    def members(self) -> Mapping[str, str]:
        """Return the paths of members by their names."""

    def open(self, path: str, mode: Mode, /) -> Handle:
        """Open the member with a path."""


def is_table(home: Home, prefix: str) -> bool:
    """Whether the group with a prefix of names is a table."""
    path = home.members().get(prefix + DESCRIPTION)
    if path is None:
        return False
    try:
        return SChunk(home.open(path, "r")).vlmeta.get("kind") in (_KIND, _KIND.encode())
    except B2ArrayError:  # whatever it is, its members can be opened
        return False


class Table:
    """A table of python-blosc2, for reading: ``table["column"]`` is a column. Its length is the number of rows.

    `b2array.open` and groups return it. A column is an array with an item for each row that was not deleted: numbers,
    bools and text of one length in their own types, times as datetime64, other text as StringDType, other bytes as
    objects. Where items are missing, it is a masked array. Columns of lists, structs, Python objects and computed
    values cannot be read; an error names them.
    """

    def __init__(self, home: Home, prefix: str = "") -> None:
        self._home, self._prefix = home, prefix
        self._url = f"{home.url}/{prefix.rstrip('/')}".rstrip("/")
        self._schema = self._located(self._read_schema)
        self._rows: npt.NDArray[np.int64] | None = None

    @property
    def url(self) -> str:
        """Where the table is."""
        return self._url

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(self._schema)

    @property
    def kinds(self) -> dict[str, str]:
        """The name that python-blosc2 gives the type of each column."""
        return {name: column["kind"] for name, column in self._schema.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._schema)

    def __len__(self) -> int:
        return len(self._valid())

    def __contains__(self, name: object) -> bool:
        return name in self._schema

    def __bool__(self) -> bool:
        return bool(self._schema)

    def __getitem__(self, name: str) -> Any:
        """Read a column.

        Raises
        ------
        KeyError
            There is no such column.
        UnsupportedError
            Columns of its kind cannot be read.
        """
        column = self._schema.get(name)
        if column is None:
            raise KeyError(f"{name!r}: {self.url} has the columns {', '.join(self._schema) or 'none'}")
        return self._located(lambda: self._column(name, column))

    def to_records(self) -> Array:
        """Read all columns into a structured array; a masked one if items are missing. Text becomes `str` objects."""
        columns = {name: self[name] for name in self._schema}
        fields: list[Any] = [
            (name, "O" if values.dtype.kind == "T" else values.dtype, values.shape[1:])
            for name, values in columns.items()
        ]
        is_masked = any(isinstance(values, np.ma.MaskedArray) for values in columns.values())
        records: Array = np.ma.zeros(len(self), fields) if is_masked else np.zeros(len(self), fields)
        for name, values in columns.items():
            records[name] = values.astype("O") if values.dtype.kind == "T" else values
        return records

    def __repr__(self) -> str:
        return (
            f"<b2array.Table {self.url}: {count_text(len(self), 'row')}, columns {', '.join(self._schema) or 'none'}>"
        )

    # Reading.

    def _located(self, verb: Callable[[], Any]) -> Any:
        try:
            return verb()
        except B2ArrayError as error:
            raise prefix_error(self.url, error) from error

    def _read_schema(self) -> dict[str, Mapping[str, Any]]:
        text = SChunk(self._handle(DESCRIPTION)).vlmeta.get("schema")
        try:
            schema = json.loads(text) if isinstance(text, str | bytes) else None
        except (ValueError, RecursionError):
            schema = None
        schema = schema if isinstance(schema, dict) else {}
        columns = schema.get("columns")
        if not isinstance(columns, list) or not all(map(_is_column, columns)):
            raise FormatError(f"expected the columns of a table, found {text!r:.80}")
        computed = schema.get("computed_columns") or []
        names = [each.get("name") if isinstance(each, dict) else each for each in computed]
        more = [{"name": name, "kind": "computed"} for name in names if isinstance(name, str)]
        return {column["name"]: column for column in [*columns, *more]}

    def _handle(self, name: str) -> Handle:
        path = self._home.members().get(self._prefix + name)
        if path is None:
            raise FormatError(f"expected a member {name!r} of the table, found none")
        return self._home.open(path, "r")

    def _array(self, name: str) -> NDArray:
        array = NDArray(self._handle(name))
        if array.nbytes > config.limits.chunk_nbytes:
            raise LimitError(
                f"{name}: {array.nbytes} bytes of a column would be read into memory, more than "
                f"{config.limits.chunk_nbytes} (config.limits.chunk_nbytes)"
            )
        return array

    def _valid(self) -> npt.NDArray[np.int64]:
        """Return the positions of the rows that were not deleted."""
        if self._rows is None:
            self._rows = self._located(self._read_rows)
        return self._rows

    def _read_rows(self) -> npt.NDArray[np.int64]:
        valid = self._array(_ROWS)
        if valid.dtype != np.bool_ or valid.ndim != 1:
            raise FormatError(f"expected a mask of rows, found an array of {valid.dtype} in {valid.ndim} dimensions")
        return np.flatnonzero(valid[...])

    def _column(self, name: str, column: Mapping[str, Any]) -> Array:
        path, kind = f"_cols/{name}", column["kind"]
        if kind in _NUMBERS:
            values = self._take(self._array(path), name)
        elif kind == "timestamp":
            values = self._times(path, name, column)
        elif kind == "utf8":
            values = self._text(path, name)
        elif kind in ("vlstring", "vlbytes"):
            return self._objects(path, name, bytes if kind == "vlbytes" else str)
        elif kind == "dictionary":
            return self._words(path, name, column)
        else:
            raise UnsupportedError(f"the column {name!r} is of kind {kind!r:.40}, which only python-blosc2 reads")
        return self._with_missing(values, path, name, column)

    def _take(self, array: NDArray, name: str) -> Array:
        rows = self._valid()
        if not array.ndim or (len(rows) and len(array) <= rows[-1]):
            raise FormatError(f"expected an item of the column {name!r} for each row, found shape {array.shape}")
        values: Array = array[...][rows]
        return values

    def _with_missing(self, values: Array, path: str, name: str, column: Mapping[str, Any]) -> Array:
        if self._prefix + f"{path}.notnull" in self._home.members():
            there = self._take(self._array(f"{path}.notnull"), name)
            missing = ~_along(there.astype(bool), values)
        elif column.get("null_value") is not None and values.ndim == 1:
            missing = _equals(values, column["null_value"])
        else:
            return values
        return np.ma.MaskedArray(values, missing) if missing.any() else values

    def _times(self, path: str, name: str, column: Mapping[str, Any]) -> Array:
        unit, values = column.get("unit"), self._take(self._array(path), name)
        if unit not in _UNITS or values.dtype != np.int64:
            raise FormatError(f"expected times in one of {_UNITS} for the column {name!r}, found {unit!r:.40}")
        return values.view(f"M8[{unit}]")

    def _text(self, path: str, name: str) -> Array:
        offsets, content = self._array(path)[...], self._array(f"{path}.utf8")[...].tobytes()
        rows = self._valid()
        is_fit = offsets.dtype == np.int64 and offsets.ndim == 1 and (not len(rows) or len(offsets) > rows[-1] + 1)
        if not is_fit or (len(offsets) and (offsets[0] < 0 or (np.diff(offsets) < 0).any())):
            raise FormatError(f"expected rising offsets of text for the column {name!r}, found others")
        if len(offsets) and offsets[-1] > len(content):
            raise FormatError(f"expected {offsets[-1]} bytes of text for the column {name!r}, found {len(content)}")
        try:
            texts = [content[offsets[row] : offsets[row + 1]].decode("utf-8") for row in rows.tolist()]
        except UnicodeDecodeError as error:
            raise FormatError(f"expected UTF-8 in the column {name!r}, found {error.object[:20]!r}") from None
        return np.array(texts, _TEXT)

    def _objects(self, path: str, name: str, kind: type) -> Array:
        items, rows = Items(self._handle(path)), self._valid()
        if len(rows) and len(items) <= rows[-1]:
            raise FormatError(f"expected an item of the column {name!r} for each row, found {len(items)} items")
        everything = list(items)
        return _objects_of([everything[row] for row in rows.tolist()], kind, name)

    def _words(self, path: str, name: str, column: Mapping[str, Any]) -> Array:
        codes, words = self._take(self._array(path), name), _words_of(Items(self._handle(f"{path}_dict")), name)
        missing = codes == column.get("null_code", -1)
        codes = np.where(missing, 0, codes)
        if codes.dtype.kind not in "iu" or (codes < 0).any() or ((codes >= len(words)) & ~missing).any():
            raise FormatError(f"expected codes below {len(words)} in the column {name!r}, found others")
        values = words[codes] if len(words) else np.full(len(codes), "", _TEXT)
        return np.ma.MaskedArray(values, missing) if missing.any() else values


def _is_column(column: object) -> bool:
    return isinstance(column, dict) and isinstance(column.get("name"), str) and isinstance(column.get("kind"), str)


def _along(there: Array, values: Array) -> Array:
    """Give a mask of rows the shape of their items."""
    if there.ndim != 1:
        raise FormatError(f"expected one mark of a missing item for each row, found shape {there.shape}")
    return np.broadcast_to(there.reshape(-1, *[1] * (values.ndim - 1)), values.shape)


def _equals(values: Array, marker: Any) -> Array:
    try:
        item = np.asarray(marker).astype(values.dtype)
        marked: Array = np.isnan(values) if values.dtype.kind in "fc" and np.isnan(item) else values == item
    except (TypeError, ValueError):
        marked = np.zeros(values.shape, bool)
    return np.asarray(marked)


def _objects_of(items: list[Any], kind: type, name: str) -> Array:
    """Return an array of text or bytes, whose missing items are None."""
    missing = np.array([item is None for item in items], bool)
    if not all(isinstance(item, kind | None) for item in items):
        raise FormatError(f"expected items of type {kind.__name__} in the column {name!r}, found others")
    filled = [kind() if item is None else item for item in items]
    if kind is str:
        values: Array = np.array(filled, _TEXT)
    else:
        values = np.empty(len(filled), object)
        values[:] = filled
    return np.ma.MaskedArray(values, missing) if missing.any() else values


def _words_of(items: Items, name: str) -> Array:
    words = list(items)
    if not all(isinstance(word, str) for word in words):
        raise FormatError(f"expected words for the codes of the column {name!r}, found other values")
    return np.array(words, _TEXT)
