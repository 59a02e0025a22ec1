"""NDLZ: blocks of two dimensions in cells of 4 x 4 or 8 x 8 bytes, decoded with NumPy.

A stream has the shape, and then the cells in C order. Each cell begins with a token for the source of its rows: the
rows follow as bytes, or they are copies of bytes before the token, at the distances that follow the token. Copies refer
to the stream, not to decoded bytes, so that all rows can be gathered at once. Cells at the edges are smaller, and
never copies.

Sources: the documentation of the codec in C-Blosc2 (``plugins/codecs/ndlz/README.md``), and the streams that it writes.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numcodecs.abc import Codec

from b2array.buffers import Buffer
from b2array.errors import FormatError, UnsupportedError

__all__ = ["MAX_RATIO", "TOKENS", "Ndlz"]

Int64Array = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

MAX_RATIO = 32
"""The maximum ratio: a cell of 64 equal bytes takes 2 bytes."""
_HEADER = struct.Struct("<Bii")
"""The number of dimensions, and the shape."""
_EQUAL = 64
"""The token of a cell of equal bytes; the byte follows the token."""
_DISTANCE_NBYTES = 2
_BEYOND = 2**40
_ROWS: dict[int, dict[int, str]] = {
    4: {
        0: "....",
        40: "aabb",
        48: "abab",
        56: "abba",
        128: "..aa",
        136: "aa..",
        144: "a.a.",
        152: "a..a",
        176: ".aa.",
        184: ".a.a",
        192: "aaaa",
        224: ".aaa",
        232: "aaa.",
        240: "aa.a",
        248: "a.aa",
    },
    8: {
        0: "........",
        **{136 + row: f"{'.' * row}aa{'.' * (6 - row)}" for row in range(7)},
        **{168 + row: f"{'.' * row}aaa{'.' * (5 - row)}" for row in range(6)},
        192: "aaaaaaaa",
    },
}
"""The sources of the rows of a cell, by edge and token: "." follows the token, "a" and "b" are at a distance."""


class _Tokens(NamedTuple):
    """The sources of the rows of cells with one edge length, with one entry for each of the 256 tokens.

    `nbytes` are the sizes of cells with their tokens; for invalid tokens, they exceed the size of any stream. For each
    row, `source` is the number of the distance (1 or 2), or 0, and `offset` is the start of the row in bytes after the
    token, or after the position at the distance.
    """

    nbytes: list[int]
    source: Int64Array
    offset: Int64Array


def _tokens(edge: int) -> _Tokens:
    nbytes = [_BEYOND] * 256
    nbytes[_EQUAL] = 2
    source, offset = np.zeros((2, 256, edge), np.int64)
    for token, rows in _ROWS[edge].items():
        ndistances = len({*rows} - {"."})
        begin = 1 + _DISTANCE_NBYTES * ndistances
        nbytes[token] = begin + edge * rows.count(".")
        source[token] = [".ab".index(row) for row in rows]
        for i, row in enumerate(rows):
            nearer = edge * rows[:i].count(row)
            offset[token, i] = nearer + begin if row == "." else nearer
    return _Tokens(nbytes, source, offset)


TOKENS = {edge: _tokens(edge) for edge in _ROWS}


class Ndlz(Codec):  # type: ignore[misc]  # numcodecs has no type hints
    """The codec of one stream. The parameter byte is the edge of the cells."""

    def __init__(self, meta: int, typesize: int, blockshape: tuple[int, ...] | None) -> None:  # noqa: ARG002
        if blockshape is None:
            raise UnsupportedError("NDLZ needs the shape of a block, and the chunk is not in an array")
        if meta not in TOKENS or len(blockshape) != 2 or 0 in blockshape:
            raise FormatError(
                f"expected cells of 4 or 8 bytes in blocks of 2 dimensions for NDLZ, found {meta} and {blockshape}"
            )
        self._edge = meta
        self._shape = blockshape
        self._tokens = TOKENS[meta]

    def encode(self, buf: Buffer) -> Buffer:
        """Refuse to encode."""
        raise UnsupportedError(f"streams of {len(buf)} bytes cannot be encoded by NDLZ, only decoded")

    def decode(self, buf: Buffer, out: None = None) -> bytes:  # noqa: ARG002 - numcodecs requires it
        """Decode a stream."""
        data = bytes(buf)
        if data[: _HEADER.size] != _HEADER.pack(2, *self._shape):
            start = data[: _HEADER.size].hex(" ")
            raise FormatError(f"expected a stream of NDLZ for blocks of shape {self._shape}, found it begins {start}")
        places = self._find_cells(data)
        # Words and gathered rows of the last cell may extend beyond the end.
        stream = np.frombuffer(data + bytes(self._edge**2), np.uint8)
        rows = self._gather_rows(stream, np.array(places, np.int64))
        ncells = [-(-n // self._edge) for n in self._shape]
        cells = rows.reshape(*ncells, self._edge).swapaxes(1, 2)
        height, width = self._shape
        padded_height = self._edge * ncells[0]
        items = np.ascontiguousarray(cells).view(np.uint8).reshape(padded_height, -1)
        return items[:height, :width].tobytes()

    def _find_cells(self, data: bytes) -> list[int]:
        """Return the positions of the tokens of all cells."""
        height, width = self._shape
        edge = self._edge
        nbytes = self._tokens.nbytes
        at = _HEADER.size
        places = []
        try:
            for top in range(0, height, edge):
                nwhole = width // edge if top + edge <= height else 0
                for _ in range(nwhole):
                    places.append(at)
                    at += nbytes[data[at]]
                for left in range(nwhole * edge, width, edge):
                    places.append(at)
                    if data[at] != 0:
                        raise FormatError(f"expected the token 0 of a cell at the edge of a block, found {data[at]}")
                    cell_height = min(edge, height - top)
                    cell_width = min(edge, width - left)
                    at += 1 + cell_height * cell_width
        except IndexError:
            at = _BEYOND  # at the end of the stream, or after an invalid token
        if at != len(data):
            inside = [place for place in places if place < len(data)]
            token = f"the last token, {data[inside[-1]]}, at byte {inside[-1]}" if inside else "none"
            raise FormatError(f"expected cells of NDLZ up to byte {len(data)}, found {token}")
        return places

    def _gather_rows(self, stream: Bytes, at: Int64Array) -> npt.NDArray[Any]:
        """Return all rows of all cells as words, with one byte per column of a cell."""
        edge = self._edge
        _, width = self._shape
        tokens = stream[at]
        begin = at[:, np.newaxis] + self._tokens.offset[tokens]
        # Cells in the last column may be narrower, so that their rows are closer together.
        ncolumns = -(-width // edge)
        cut = width % edge
        if cut:
            last = slice(ncolumns - 1, None, ncolumns)
            rows = cut * np.arange(edge)
            begin[last] = at[last, np.newaxis] + 1 + rows
        source = self._tokens.source[tokens]
        copied = source.nonzero()
        if copied[0].size:
            origin = at[copied[0]]
            places = origin - 1 + _DISTANCE_NBYTES * source[copied]
            begin[copied] -= _words(stream, _DISTANCE_NBYTES)[places]
            # A copy of bytes that follow its token would depend on itself.
            reaches_token = begin[copied] + edge > origin
            if begin.min() < _HEADER.size or reaches_token.any():
                raise FormatError("expected copies of bytes in front of a cell of NDLZ, found others")
        words: npt.NDArray[Any] = _words(stream, edge)[begin]
        is_equal = tokens == _EQUAL
        repeated = stream[at[is_equal] + 1] * np.uint64(0x0101010101010101)
        words[is_equal] = repeated.astype(words.dtype)[:, np.newaxis]
        return words


def _words(stream: Bytes, nbytes: int) -> npt.NDArray[Any]:
    """Return the word that begins at each byte, as a view."""
    count = stream.size - nbytes + 1
    return np.ndarray((count,), f"<u{nbytes}", stream, strides=(1,))
