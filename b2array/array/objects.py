"""Sequences of Python objects that python-blosc2 stored as msgpack: its object arrays, batch arrays and list arrays.

An object array has a chunk for each object. The others have a chunk for each batch, whose blocks are lists of objects.

Source: ``objectarray.py``, ``batch_array.py`` and ``list_array.py`` of python-blosc2.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, overload

from b2array.array.schunk import SChunk
from b2array.commit.handle import Handle
from b2array.display.text_tables import count_text
from b2array.errors import FormatError, UnsupportedError, prefix_errors
from b2array.format.attributes import decode_attr, decode_attrs
from b2array.format.frame import Frame

__all__ = ["Items", "holds_items"]

_KINDS = {"vlarray": "object", "listarray": "list", "batcharray": "object"}
_LENGTHS = "_batch_array_metadata"


def holds_items(frame: Frame) -> bool:
    """Return whether a frame contains objects of python-blosc2, according to its metalayers."""
    return any(frame.metalayer(kind) is not None for kind in _KINDS)


class Items(Sequence[Any]):
    r"""Python objects that python-blosc2 stored as msgpack, read-only; `b2array.open` returns this class.

    The items are the objects of an object array, the lists of a list array, or the objects of all batches in order.
    Pickled objects are refused, because to load a pickle can run any program.

    Examples
    --------
    >>> import b2array
    >>> chunks = b2array.create_schunk(chunksize=0, meta={"vlarray": {"version": 1, "serializer": "msgpack"}})
    >>> _ = chunks.append_data(b"\x93\x01\x02\xa1x")
    >>> items = Items(chunks._handle.pinned())
    >>> len(items), items[0]
    (1, [1, 2, 'x'])
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._chunks = SChunk(handle)
        self._kind = next(kind for kind in _KINDS if handle.frame.metalayer(kind) is not None)
        self._last: tuple[int, list[Any]] | None = None
        self._counts = prefix_errors(self.url, self._read_counts)

    def _read_counts(self) -> list[int] | None:
        """Return the number of objects in each chunk, or None if every chunk has one."""
        about = decode_attr(self._handle.frame.metalayer(self._kind) or b"\xc0")
        serializer = about.get("serializer") if isinstance(about, Mapping) else None
        if serializer != "msgpack":
            raise UnsupportedError(f"only objects stored as msgpack are read, not as {serializer!r}")
        if self._kind == "vlarray":
            return None
        notes = self._chunks.vlmeta.get(_LENGTHS)
        counts = notes.get("batch_lengths") if isinstance(notes, Mapping) else None
        if not isinstance(counts, list):
            # python-blosc2 also counts the objects if the note is missing.
            return [len(self._decode(number)) for number in range(self._chunks.nchunks)]
        # Compare types, because True is also an instance of int.
        if not all(type(count) is int and count >= 0 for count in counts):
            raise FormatError(f"expected the lengths of batches in {_LENGTHS!r}, found {counts!r:.80}")
        if len(counts) != self._chunks.nchunks:
            raise FormatError(f"expected {self._chunks.nchunks} batches, found {len(counts)} lengths")
        return counts

    @property
    def url(self) -> str:
        """The URL, without secrets."""
        return self._handle.url

    @property
    def cbytes(self) -> int:
        """The compressed size of the chunks in bytes."""
        return self._chunks.cbytes

    def close(self) -> None:
        """Close all files. They are opened again when necessary."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._handle,)

    def __len__(self) -> int:
        return self._chunks.nchunks if self._counts is None else sum(self._counts)

    @overload
    def __getitem__(self, key: int) -> Any: ...

    @overload
    def __getitem__(self, key: slice) -> list[Any]: ...

    def __getitem__(self, key: int | slice) -> Any:
        """Return one object, or a list for a slice."""
        if isinstance(key, slice):
            return [self._item(n) for n in range(*key.indices(len(self)))]
        number, length = operator.index(key), len(self)
        if not -length <= number < length:
            raise IndexError(f"index {number} is out of bounds for {length} items")
        return self._item(number % length)

    def __iter__(self) -> Iterator[Any]:
        # The iterator of Sequence would end at any IndexError, even one from damaged data.
        return map(self._item, range(len(self)))

    def _item(self, number: int) -> Any:
        if self._counts is None:
            return self._batch(number, 1)[0]
        batch = 0
        while number >= self._counts[batch]:
            number -= self._counts[batch]
            batch += 1
        return self._batch(batch, self._counts[batch])[number]

    def _batch(self, number: int, expected: int) -> list[Any]:
        """Return the objects of a chunk; FormatError for another number of objects than expected."""
        # A loop over the objects decodes each batch once.
        if self._last is not None:
            last_number, objects = self._last
            if last_number == number:
                return objects
        objects = self._decode(number)
        if len(objects) != expected:
            raise FormatError(f"{self.url}: chunk {number}: expected {expected} objects, found {len(objects)}")
        self._last = number, objects
        return objects

    def _decode(self, number: int) -> list[Any]:
        """Read a chunk, and return its objects."""
        unpack = _unpack_object if self._kind == "vlarray" else _unpack_batch
        content = self._chunks.decompress_chunk(number)
        return prefix_errors(f"{self.url}: chunk {number}", lambda: unpack(content))

    def __repr__(self) -> str:
        return f"<b2array.Items {self.url}: {count_text(len(self), _KINDS[self._kind])}>"


def _unpack_object(content: bytes) -> list[Any]:
    """Return the object of a chunk, alone in a list."""
    return [decode_attr(content)]


def _unpack_batch(content: bytes) -> list[Any]:
    """Return the objects of a batch, whose blocks are lists of objects."""
    blocks = decode_attrs(content)
    if not all(isinstance(block, list) for block in blocks):
        raise FormatError("expected lists of objects in a batch, found other values")
    return [item for block in blocks for item in block]
