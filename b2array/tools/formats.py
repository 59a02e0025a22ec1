"""The file formats that `b2array.convert` knows.

Source: "The N-dimensional array format" of NumPy's documentation (``.npy``), through NumPy; the others have modules of
their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array import bloscpack
from b2array.array import creation
from b2array.array.options import ArrayOptions
from b2array.bloscpack.header import Description, describe
from b2array.errors import FormatError, UnsupportedError
from b2array.store.atomic import AtomicFile, require_free
from b2array.store.base import Store
from b2array.store.open import open_store
from b2array.store.secrets import redact
from b2array.tools.hdf5 import MAGIC, check_hdf5, open_hdf5, write_hdf5
from b2array.tools.sources import (  # fmt: skip
    Box,
    Format,
    Piece,
    Settings,
    Source,
    Storage,
    json_attrs,
    local_copy,
    refuse_objects,
)
from b2array.tools.zarr import check_zarr, open_zarr, write_zarr

__all__ = ["FORMATS", "find"]

_NPY_MAGIC = b"\x93NUMPY"


def find(
    url: str | os.PathLike[str], name: str | None, storage_options: Storage, *, exists: bool
) -> tuple[Format, str]:
    """Return the format of a place, by its name or by what is there, and the place as text.

    Raises
    ------
    ValueError
        Nothing tells what it is.
    """
    text = os.fspath(url)
    if name is not None:
        if name not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {name!r}")
        return FORMATS[name], text
    path = redact(text).partition("::")[0].partition("#")[0].partition("?")[0].rstrip("/\\")
    for found in FORMATS.values():
        if path.lower().endswith(found.suffixes):
            return found, text
    if ".zarr/" in path.lower():
        return FORMATS["zarr"], text
    if exists:
        return FORMATS[_sniff(open_store(text, storage_options=storage_options))], text
    suffixes = " ".join(suffix for each in FORMATS.values() for suffix in each.suffixes)
    raise ValueError(f"{redact(text)} does not say which format it is to have; known are {suffixes}")


def _sniff(store: Store) -> str:
    head, frame, *zarr = store.head(["", "chunks.b2frame", "zarr.json", ".zarray", ".zgroup"], 16)
    if not isinstance(frame, Exception):
        return "b2nd"
    if not all(isinstance(found, Exception) for found in zarr):
        return "zarr"
    if isinstance(head, Exception):
        raise head
    start = bytes(head.data)
    for magic, name in ((_NPY_MAGIC, "npy"), (MAGIC, "hdf5"), (b"blpk", "blp")):
        if start.startswith(magic):
            return name
    return "b2nd"


# Blosc2 frames.


def _open_b2nd(url: str, storage_options: Storage) -> Source:
    a = creation.open(url, storage_options=storage_options)
    resources = ExitStack()
    resources.callback(a.close)
    return Source(
        a.shape, a.dtype, a.__getitem__, a.chunks, a.blocks, dict(a.attrs), a.dims, a.fill_value, resources
    )  # fmt: skip


def _write_b2nd(url: str, source: Source, pieces: Iterable[Piece], settings: Settings) -> None:
    creation.write_regions(
        url, source.shape, source.dtype, pieces, ArrayOptions(
            chunks=None if 0 in settings.chunks else settings.chunks, blocks=settings.blocks, fill_value=source.fill,
            dims=source.dims, attrs=source.attrs, cparams=settings.cparams, layout=settings.layout,
            overwrite=settings.overwrite, storage_options=settings.storage_options,
        ),
    )  # fmt: skip


# NumPy's own.


def _open_npy(url: str, storage_options: Storage) -> Source:
    resources = ExitStack()
    path = resources.enter_context(local_copy(url, storage_options))
    try:
        data = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        resources.close()
        if "Python objects" in str(error) or "Object arrays" in str(error):
            raise UnsupportedError(f"{redact(url)} holds pickled Python objects, which are not safe to read") from None
        raise FormatError(f"{redact(url)}: expected a .npy file, found something else: {error}") from None
    if not isinstance(data, np.ndarray):
        resources.close()
        raise FormatError(f"{redact(url)}: expected a .npy file, found an archive of several")
    return Source(data.shape, data.dtype, lambda box: np.asarray(data[box]), resources=resources)


def _write_npy(url: str, source: Source, pieces: Iterable[Piece], settings: Settings) -> None:
    store = open_store(url, storage_options=settings.storage_options)
    require_free(store, {"": _NPY_MAGIC}, "a .npy file", overwrite=settings.overwrite)
    with AtomicFile(store, overwrite=settings.overwrite) as path:
        out = np.lib.format.open_memmap(path, "w+", source.dtype, source.shape)
        for box, values in pieces:
            out[box] = values
        out.flush()
        del out


# Bloscpack.


def _open_blp(url: str, storage_options: Storage) -> Source:
    f = bloscpack.open(url, storage_options=storage_options)
    resources = ExitStack()
    resources.callback(f.close)
    meta = f.metadata if isinstance(f.metadata, dict) else {}
    about = f.description
    dims, fill, attrs = meta.get("dims"), meta.get("fill_value"), meta.get("attrs")
    item: Any = 0
    if isinstance(fill, str) and len(fill) == 2 * about.dtype.itemsize:
        item = np.frombuffer(bytes.fromhex(fill), about.dtype)[0]

    def read(box: Box) -> npt.NDArray[Any]:
        found = f[box]
        return np.frombuffer(found, np.uint8) if isinstance(found, bytes) else np.asarray(found)

    return Source(
        about.shape, about.dtype, read, attrs=attrs if isinstance(attrs, dict) else {},
        dims=tuple(dims) if isinstance(dims, list) else None, fill_value=item, resources=resources,
    )  # fmt: skip


def _check_blp(source: Source, settings: Settings) -> None:
    refuse_objects(source, settings)
    describe(Description(source.dtype, source.shape, "C"))
    json_attrs(source.attrs)


def _write_blp(url: str, source: Source, pieces: Iterable[Piece], settings: Settings) -> None:
    metadata: dict[str, Any] = {}
    if source.attrs:
        metadata["attrs"] = json_attrs(source.attrs)
    if source.dims is not None:
        metadata["dims"] = list(source.dims)
    raw = np.asarray(source.fill, source.dtype).tobytes()
    if any(raw):
        metadata["fill_value"] = raw.hex()
    with bloscpack.create(
        url, source.shape, source.dtype, metadata=metadata, cparams=settings.cparams, overwrite=settings.overwrite,
        storage_options=settings.storage_options, **settings.options,
    ) as writer:  # fmt: skip
        for _, values in pieces:
            writer.write(np.ascontiguousarray(values))


FORMATS = {
    each.name: each
    for each in (
        Format("b2nd", (".b2nd", ".b2frame"), _open_b2nd, refuse_objects, _write_b2nd, sequential=False),
        Format("npy", (".npy",), _open_npy, refuse_objects, _write_npy, sequential=False, keeps=frozenset()),
        Format("zarr", (".zarr",), open_zarr, check_zarr, write_zarr, sequential=False),
        Format("hdf5", (".h5", ".hdf5", ".hdf", ".nc"), open_hdf5, check_hdf5, write_hdf5, sequential=False),
        Format("blp", (".blp",), _open_blp, _check_blp, _write_blp, sequential=True),
    )
}
