"""`Table`: reads tables of python-blosc2 (`blosc2.CTable`), which are groups whose members store the columns.

A table has a member ``_meta`` with its description, a mask ``_valid_rows`` of the rows that were not deleted, and below
``_cols`` the arrays of each column: the items, and, where a column needs them, a mask of the items that are not missing
(``.notnull``), the bytes of its text (``.utf8``), or the words for its codes (``_dict``).

Source: ``ctable_storage.py`` and ``schema.py`` of python-blosc2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.array.array import NDArray
from b2array.array.objects import Items
from b2array.array.schunk import SChunk
from b2array.commit.handle import Handle
from b2array.display.text_tables import count_text
from b2array.errors import B2ArrayError, FormatError, LimitError, ReadOnlyError, UnsupportedError, prefix_error
from b2array.group.homes import Home

__all__ = ["DESCRIPTION", "Table", "is_table", "refuse_parts"]

DESCRIPTION = "_meta"
"""The member that describes a table."""
_ROWS = "_valid_rows"
_PARTS = (DESCRIPTION, _ROWS, "_cols/", "_indexes/")
_KIND = "ctable"
_VERSIONS = (1, 2, 3)
"""The versions of descriptions that say how the columns are stored; a later one may store them in another way."""
_NUMBERS = frozenset(
    [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    + ["float32", "float64", "complex64", "complex128", "bool", "string", "bytes", "ndarray"]
)
"""The kinds of columns whose items are stored in one array, in their own type."""
_UNITS = ("s", "ms", "us", "ns")
_TEXT = np.dtypes.StringDType()

Array = npt.NDArray[Any]


def is_table(home: Home, prefix: str) -> bool:
    """Return whether the members whose names begin with a prefix are a table; this may read the description."""
    path = home.members().get(prefix + DESCRIPTION)
    if path is None:
        return False
    try:
        kind = SChunk(home.open(path, "r")).vlmeta.get("kind")
    except B2ArrayError:
        # Without a readable description it is a group, whose other members can be opened.
        return False
    return kind in (_KIND, _KIND.encode())


def refuse_parts(home: Home, name: str) -> None:
    """Raise ReadOnlyError if a name is inside a table; this may read the descriptions of tables."""
    for outer in accumulate(name.split("/")[:-1], "{}/{}".format):
        if is_table(home, f"{outer}/"):
            raise ReadOnlyError(
                f"{home.url}/{outer} is a table of python-blosc2, of which {name!r} is a part; change it with"
                " python-blosc2, or remove or copy the whole table"
            )
    if name.startswith(_PARTS) and is_table(home, ""):
        raise ReadOnlyError(
            f"{home.url} is a table of python-blosc2, of which {name!r} is a part; change the table with"
            f" blosc2.open({home.url!r}, mode='a')"
        )


class Table:
    """A table of python-blosc2, read-only: ``table["column"]`` reads a column. The length is the number of rows.

    `b2array.open` and groups return tables. A column is an array with an item for each row that was not deleted.
    Numbers, bools and text of fixed length have their own types; times are datetime64, other text is StringDType, and
    other bytes are objects. A column with missing items is a masked array. Columns of lists, structs, Python objects
    and computed values cannot be read, and raise UnsupportedError.
    """

    def __init__(self, home: Home, prefix: str = "") -> None:
        """Read the description of the table; FormatError if it does not describe columns."""
        self._home = home
        self._prefix = prefix
        self._url = f"{home.url}/{prefix.rstrip('/')}".rstrip("/")
        self._schema = self._with_url(self._read_schema)
        self._rows: npt.NDArray[np.int64] | None = None

    @property
    def url(self) -> str:
        """The URL of the table."""
        return self._url

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(self._schema)

    @property
    def kinds(self) -> dict[str, str]:
        """The type of each column, as python-blosc2 calls it, by the name of the column."""
        return {name: column["kind"] for name, column in self._schema.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._schema)

    def __len__(self) -> int:
        return len(self._valid_rows())

    def __contains__(self, name: object) -> bool:
        return name in self._schema

    def __bool__(self) -> bool:
        return bool(self._schema)

    def __getitem__(self, name: str) -> Any:
        """Read a column.

        Raises
        ------
        KeyError
            The table has no such column.
        UnsupportedError
            Columns of its kind cannot be read.
        """
        column = self._schema.get(name)
        if column is None:
            names = ", ".join(self._schema) or "none"
            raise KeyError(f"{name!r}: {self.url} has the columns {names}")
        return self._with_url(lambda: self._read_column(name, column))

    def to_records(self) -> Array:
        """Read all columns into a structured array, masked if items are missing. Text becomes `str` objects."""
        columns: dict[str, Array] = {}
        is_masked = False
        for name in self._schema:
            values = self[name]
            is_masked = is_masked or isinstance(values, np.ma.MaskedArray)
            # A structured array cannot have fields of StringDType.
            columns[name] = values.astype("O") if values.dtype.kind == "T" else values
        fields: list[Any] = [(name, values.dtype, values.shape[1:]) for name, values in columns.items()]
        zeros = np.ma.zeros if is_masked else np.zeros
        records: Array = zeros(len(self), fields)
        for name, values in columns.items():
            records[name] = values
        return records

    def __repr__(self) -> str:
        rows = count_text(len(self), "row")
        names = ", ".join(self._schema) or "none"
        return f"<b2array.Table {self.url}: {rows}, columns {names}>"

    # Reading.

    def _with_url(self, function: Callable[[], Any]) -> Any:
        """Call a function, and return its result; put the URL of the table in front of its errors."""
        try:
            return function()
        except B2ArrayError as error:
            raise prefix_error(self.url, error) from error

    def _read_schema(self) -> dict[str, Mapping[str, Any]]:
        """Read the description of each column, by the column's name; FormatError for an invalid description.

        Computed columns are included, with the kind "computed". UnsupportedError: a later version of python-blosc2 has
        written the description.
        """
        text = SChunk(self._open(DESCRIPTION)).vlmeta.get("schema")
        schema = None
        if isinstance(text, str | bytes):
            # Text that is not JSON describes no columns, so the error below shows the text.
            with suppress(ValueError, RecursionError):
                schema = json.loads(text)
        schema = schema if isinstance(schema, dict) else {}
        version = schema.get("version", 1)
        if version not in _VERSIONS:
            raise UnsupportedError(f"expected the description of a table of version 1 to 3, found {version!r:.40}")
        columns = schema.get("columns")
        if not isinstance(columns, list) or not all(map(_is_column, columns)):
            raise FormatError(f"expected the columns of a table, found {text!r:.80}")
        computed = schema.get("computed_columns") or []
        names = [each.get("name") if isinstance(each, dict) else each for each in computed]
        more = [{"name": name, "kind": "computed"} for name in names if isinstance(name, str)]
        return {column["name"]: column for column in [*columns, *more]}

    def _open(self, name: str) -> Handle:
        """Open a member of the table for reading; FormatError if it is missing."""
        path = self._home.members().get(self._prefix + name)
        if path is None:
            raise FormatError(f"expected a member {name!r} of the table, found none")
        return self._home.open(path, "r")

    def _open_array(self, name: str) -> NDArray:
        """Open a member that will be read as a whole; LimitError if it is too large for that."""
        array = NDArray(self._open(name))
        if array.nbytes > config.limits.chunk_nbytes:
            raise LimitError(
                f"{name}: {array.nbytes} bytes of a column would be read into memory, more than "
                f"{config.limits.chunk_nbytes} (config.limits.chunk_nbytes)"
            )
        return array

    def _valid_rows(self) -> npt.NDArray[np.int64]:
        """Return the positions of the rows that were not deleted; the first call reads and keeps them."""
        if self._rows is None:
            self._rows = self._with_url(self._read_rows)
        return self._rows

    def _read_rows(self) -> npt.NDArray[np.int64]:
        """Read the mask of rows; return the positions of the rows that were not deleted. FormatError: it is no mask."""
        mask = self._open_array(_ROWS)
        if mask.dtype != np.bool_ or mask.ndim != 1:
            raise FormatError(f"expected a mask of rows, found an array of {mask.dtype} in {mask.ndim} dimensions")
        return np.flatnonzero(mask[...])

    def _read_column(self, name: str, column: Mapping[str, Any]) -> Array:
        """Read a column in the way that its kind requires, and mask its missing items. `column` describes it.

        Raises UnsupportedError for a kind that only python-blosc2 reads.
        """
        path = _path_of(name)
        kind = column["kind"]
        if kind in _NUMBERS:
            values = self._read_valid(path, name)
        elif kind == "timestamp":
            values = self._read_times(path, name, column)
        elif kind == "utf8":
            values = self._read_text(path, name)
        elif kind in ("vlstring", "vlbytes"):
            item_type = bytes if kind == "vlbytes" else str
            return self._read_objects(path, name, item_type)
        elif kind == "dictionary":
            return self._read_words(path, name, column)
        else:
            raise UnsupportedError(f"the column {name!r} is of kind {kind!r:.40}, which only python-blosc2 reads")
        return self._mask_missing(values, path, name, column)

    def _read_valid(self, path: str, name: str) -> Array:
        """Read the array at a path, and return its items in the rows that were not deleted.

        Raises FormatError, which names the column, if the array is too short.
        """
        array = self._open_array(path)
        rows = self._valid_rows()
        if not array.ndim or (len(rows) and len(array) <= rows[-1]):
            raise FormatError(f"expected an item of the column {name!r} for each row, found shape {array.shape}")
        values: Array = array[...][rows]
        return values

    def _mask_missing(
        self,
        values: Array,
        path: str,
        name: str,
        column: Mapping[str, Any],
    ) -> Array:
        """Mask the missing items: by a mask next to the column, or by the value that stands for a missing item.

        This reads the mask. If the column has neither, the values stay as they are.
        """
        if self._prefix + f"{path}.notnull" in self._home.members():
            not_null = self._read_valid(f"{path}.notnull", name)
            missing = ~_broadcast_mask(not_null.astype(bool), values)
        elif column.get("null_value") is not None and values.ndim == 1:
            missing = _find_marker(values, column["null_value"])
        else:
            return values
        return _mask(values, missing)

    def _read_times(self, path: str, name: str, column: Mapping[str, Any]) -> Array:
        """Read times as datetime64 in the column's unit; FormatError for an unknown unit, or for any type but int64."""
        unit = column.get("unit")
        values = self._read_valid(path, name)
        if unit not in _UNITS or values.dtype != np.int64:
            raise FormatError(f"expected times in one of {_UNITS} for the column {name!r}, found {unit!r:.40}")
        return values.view(f"M8[{unit}]")

    def _read_text(self, path: str, name: str) -> Array:
        """Read text that is stored as the bytes of all items, and the offset of each item among them.

        Raises FormatError for other offsets, missing bytes, or bytes that are not UTF-8.
        """
        offsets = self._open_array(path)[...]
        content = self._open_array(f"{path}.utf8")[...].tobytes()
        rows = self._valid_rows()
        is_sequence = offsets.dtype == np.int64 and offsets.ndim == 1
        if not is_sequence or (len(rows) and len(offsets) <= rows[-1] + 1) or not _is_rising(offsets):
            raise FormatError(f"expected rising offsets of text for the column {name!r}, found others")
        if len(offsets) and offsets[-1] > len(content):
            raise FormatError(f"expected {offsets[-1]} bytes of text for the column {name!r}, found {len(content)}")
        try:
            texts = [content[offsets[row] : offsets[row + 1]].decode("utf-8") for row in rows.tolist()]
        except UnicodeDecodeError as error:
            raise FormatError(f"expected UTF-8 in the column {name!r}, found {error.object[:20]!r}") from None
        return np.array(texts, _TEXT)

    def _read_objects(self, path: str, name: str, kind: type) -> Array:
        """Read text or bytes that are stored as serialized objects, and mask missing ones; FormatError for others."""
        items = Items(self._open(path))
        rows = self._valid_rows()
        if len(rows) and len(items) <= rows[-1]:
            raise FormatError(f"expected an item of the column {name!r} for each row, found {len(items)} items")
        everything = list(items)
        return _objects_of([everything[row] for row in rows.tolist()], kind, name)

    def _read_words(self, path: str, name: str, column: Mapping[str, Any]) -> Array:
        """Read words that are stored as codes, and a list of the different words; mask those with the null code.

        Raises FormatError for codes without a word.
        """
        codes = self._read_valid(path, name)
        words = _words_of(Items(self._open(f"{path}_dict")), name)
        missing = codes == column.get("null_code", -1)
        codes = np.where(missing, 0, codes)
        is_integer = codes.dtype.kind in "iu"
        if not is_integer or (codes < 0).any() or ((codes >= len(words)) & ~missing).any():
            raise FormatError(f"expected codes below {len(words)} in the column {name!r}, found others")
        # Without any words all items are missing, and each gets an empty text.
        values = words[codes] if len(words) else np.full(len(codes), "", _TEXT)
        return _mask(values, missing)


def _path_of(name: str) -> str:
    r"""Return the name of the member that stores a column.

    Columns inside a column have its name and a dot in front. After a backslash, any character is part of a name.

    Examples
    --------
    >>> _path_of("trip.speed")
    '_cols/trip/speed'
    >>> _path_of(r"trip\.speed (m/s)")
    '_cols/trip%2Espeed (m%2Fs)'
    """
    # At the end of the name, a backslash has nothing behind it, and is a character.
    characters = re.findall(r"\\.|.", name, re.DOTALL)
    parts = [""]
    for character in characters:
        if character == ".":
            parts.append("")
        else:
            parts[-1] += _quote(character[-1])
    return "/".join(["_cols", *parts])


def _quote(character: str) -> str:
    """Return a character of a column's name as it stands in the path; separators and "%" become hexadecimal codes."""
    return f"%{ord(character):02X}" if character in "%/.\\" else character


def _mask(values: Array, missing: Array) -> Array:
    """Return a masked array if items are missing, else the values themselves."""
    return np.ma.MaskedArray(values, missing) if missing.any() else values


def _is_column(column: object) -> bool:
    """Return whether a part of the description names a column and its kind."""
    if not isinstance(column, dict):
        return False
    return isinstance(column.get("name"), str) and isinstance(column.get("kind"), str)


def _is_rising(offsets: Array) -> bool:
    """Return whether offsets are not negative, and none is smaller than the one before."""
    if not len(offsets):
        return True
    return bool(offsets[0] >= 0 and (np.diff(offsets) >= 0).all())


def _broadcast_mask(mask: Array, values: Array) -> Array:
    """Return a mask of rows, repeated for the dimensions of the items in `values`; FormatError unless it has one."""
    if mask.ndim != 1:
        raise FormatError(f"expected one mark of a missing item for each row, found shape {mask.shape}")
    inner = [1] * (values.ndim - 1)
    return np.broadcast_to(mask.reshape(-1, *inner), values.shape)


def _find_marker(values: Array, marker: Any) -> Array:
    """Return a mask of the items that equal the marker of missing items. NaN equals NaN here."""
    try:
        item = np.asarray(marker).astype(values.dtype)
        is_nan = values.dtype.kind in "fc" and np.isnan(item)
        return np.asarray(np.isnan(values) if is_nan else values == item)
    except (TypeError, ValueError):
        # The type cannot represent the marker, so no item is the marker.
        return np.zeros(values.shape, bool)


def _objects_of(items: list[Any], kind: type, name: str) -> Array:
    """Return an array of text, or of bytes objects. None marks missing items, which are masked.

    Raises FormatError for an item of another type.
    """
    missing = np.array([item is None for item in items], bool)
    if not all(isinstance(item, kind | None) for item in items):
        raise FormatError(f"expected items of type {kind.__name__} in the column {name!r}, found others")
    filled = [kind() if item is None else item for item in items]
    if kind is str:
        return _mask(np.array(filled, _TEXT), missing)
    values = np.empty(len(filled), object)
    values[:] = filled
    return _mask(values, missing)


def _words_of(items: Items, name: str) -> Array:
    """Return the words of a column with codes; FormatError if the list has other values."""
    words = list(items)
    if not all(isinstance(word, str) for word in words):
        raise FormatError(f"expected words for the codes of the column {name!r}, found other values")
    return np.array(words, _TEXT)
