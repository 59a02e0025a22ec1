"""Output of `cat`, to files or standard output: .npy and .csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

__all__ = ["WRITERS", "Writer"]

Array = npt.NDArray[Any]
Writer = Callable[[BinaryIO, Array], None]


@dataclass(frozen=True, slots=True)
class _Pipe:
    """A file with only a `write` method: NumPy asks other files for their position, which pipes do not have."""

    file: BinaryIO

    def write(self, data: bytes) -> int:
        return self.file.write(data)


def write_npy(file: BinaryIO, values: Array) -> None:
    """Write an array in the .npy format."""
    np.lib.format.write_array(_Pipe(file), values, allow_pickle=False)


def write_csv(file: BinaryIO, values: Array) -> None:
    """Write an array of up to two dimensions as comma-separated values, with a header line if it has named fields."""
    has_planes = values.ndim > 2 or (values.ndim == 2 and values.dtype.names)
    if has_planes:
        raise ValueError(f"CSV has rows and columns, found an array of shape {values.shape}: select a part of it")
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    if values.dtype.names:
        writer.writerow(values.dtype.names)
        rows = np.atleast_1d(values)
        columns = [_texts(rows[name]) for name in values.dtype.names]
        writer.writerows(zip(*columns, strict=True))
    else:
        rows = _texts(values)
        writer.writerows(rows if values.ndim == 2 else rows.reshape(-1, 1))
    text.detach()  # the caller closes the file


def _texts(values: Array) -> Array:
    """Return items as text, with just enough digits to restore each value exactly."""
    if values.ndim > 2 or values.dtype.names:
        raise ValueError(f"CSV has no place for items of type {values.dtype}")
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8")  # `astype` accepts only ASCII
    if values.dtype.kind == "U":
        return values
    return values.astype(str)


WRITERS: Mapping[str, Writer] = {"npy": write_npy, "csv": write_csv}
