"""Datasets of HDF5 files, through the library h5py.

Sources: the HDF5 data model, and the conventions of HDF5 dimension scales.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import numpy as np

from b2array.errors import FormatError, UnsupportedError
from b2array.store.atomic import AtomicFile, require_free
from b2array.store.open import open_store
from b2array.store.secrets import redact
from b2array.tools.formats import (  # fmt: skip
    Piece,
    Settings,
    Source,
    Storage,
    local_copy,
    only,
    refuse_objects,
    require,
)

__all__ = ["MAGIC", "check_hdf5", "open_hdf5", "write_hdf5"]

MAGIC = b"\x89HDF\r\n\x1a\n"
_SCALES = frozenset({
    "CLASS", "DIMENSION_LABELS", "DIMENSION_LIST", "NAME", "REFERENCE_LIST", "_FillValue", "_NCProperties",
    "_Netcdf4Coordinates", "_Netcdf4Dimid",
})  # fmt: skip


def _parts(url: str) -> tuple[str, str | None]:
    """Split a URL into that of the file and the name of a dataset."""
    file, _, name = url.partition("#")
    return file, name or None


def open_hdf5(url: str, storage_options: Storage) -> Source:
    """Open a dataset; see `b2array.tools.formats.Format`."""
    h5py = require("h5py", "hdf5", "HDF5")
    address, name = _parts(url)
    resources = ExitStack()
    try:
        path = resources.enter_context(local_copy(address, storage_options))
        try:
            file = resources.enter_context(h5py.File(path, "r"))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise FormatError(f"{redact(address)}: expected an HDF5 file, found something else: {error}") from None
        data = _dataset(h5py, file, name, address)
        dims = tuple(_dim(dim) for dim in data.dims)
        return Source(
            data.shape, _bare(data.dtype), lambda box: np.asarray(data[box]), data.chunks,
            attrs={key: _unpacked(value) for key, value in data.attrs.items() if key not in _SCALES},
            dims=dims if any(dims) else None, fill_value=data.fillvalue, resources=resources,
        )  # fmt: skip
    except BaseException:
        resources.close()
        raise


def _dataset(h5py: ModuleType, file: Any, name: str | None, address: str) -> Any:
    if name is None:
        return only(_datasets(h5py, file), f"{address}#...")
    node = file.get(name)
    if not isinstance(node, h5py.Dataset):
        raise FileNotFoundError(f"{redact(address)} holds no dataset {name!r}")
    return node


def _dim(dim: Any) -> str | None:
    if dim.label:
        return str(dim.label)
    return dim[0].name.rpartition("/")[2] if len(dim) else None


def _unpacked(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item() if value.dtype.kind in "biufSU" else value
    return value


def _bare(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a type without the metadata that h5py attaches to it."""
    if dtype.hasobject:
        return dtype
    if dtype.subdtype is not None:
        return np.dtype((_bare(dtype.base), dtype.shape))
    if dtype.names is None:
        return np.dtype(dtype.str)
    fields = [dtype.fields[name] for name in dtype.names] if dtype.fields else []
    return np.dtype({
        "names": list(dtype.names),
        "formats": [_bare(entry[0]) for entry in fields],
        "offsets": [entry[1] for entry in fields],
        "itemsize": dtype.itemsize,
    })  # fmt: skip


def _stored(dtype: np.dtype[Any]) -> Any:
    """Return the type to store. h5py stores times as opaque bytes, which it recognises when it reads them."""
    return require("h5py", "hdf5", "HDF5").opaque_dtype(dtype) if dtype.kind in "mM" else dtype


def check_hdf5(source: Source, settings: Settings) -> None:
    """Raise an error for arrays that HDF5 cannot hold; see `b2array.tools.formats.Format`."""
    refuse_objects(source, settings)
    h5py = require("h5py", "hdf5", "HDF5")
    try:
        held = h5py.h5t.py_create(_stored(source.dtype), logical=True).dtype == source.dtype
    except TypeError as error:
        raise UnsupportedError(f"HDF5 cannot hold items of type {source.dtype}: {error}") from None
    if not held:
        raise UnsupportedError(f"HDF5 would change items of type {source.dtype}")
    # Try the attributes on a file in memory, because only h5py knows which it can store.
    with h5py.File("probe", "w", driver="core", backing_store=False) as probe:
        _set_attrs(probe, source.attrs)


def _set_attrs(node: Any, attrs: Mapping[str, Any]) -> None:
    for name, value in attrs.items():
        try:
            node.attrs[name] = value
        except (TypeError, ValueError, OSError) as error:
            raise TypeError(f"HDF5 cannot hold the attribute {name!r}: {error}") from None


def write_hdf5(url: str, source: Source, pieces: Iterable[Piece], settings: Settings) -> None:
    """Write a dataset; see `b2array.tools.formats.Format`. Other datasets of the file stay."""
    h5py = require("h5py", "hdf5", "HDF5")
    address, name = _parts(url)
    store = open_store(address, storage_options=settings.storage_options)
    overwrite = settings.overwrite or name is not None
    exists = require_free(store, {"": MAGIC}, "an HDF5 file", overwrite=overwrite) is not None
    adds = exists and name is not None
    with AtomicFile(store, overwrite=adds or settings.overwrite) as path:
        if exists:
            with local_copy(address, settings.storage_options) as old:
                _require_room(h5py, old, address, name, overwrite=settings.overwrite)
                if adds:
                    shutil.copyfile(old, path)
        _write(h5py, path, name or "data", source, pieces, settings)


def _require_room(h5py: ModuleType, path: str, address: str, name: str | None, *, overwrite: bool) -> None:
    """Raise FileExistsError if more than the one dataset would be replaced."""
    with h5py.File(path, "r") as file:
        if name is None and len(_datasets(h5py, file)) > 1:
            raise FileExistsError(f"{redact(address)} holds several datasets: name the one to replace behind #")
        if name is not None and name in file and not (overwrite and isinstance(file[name], h5py.Dataset)):
            raise FileExistsError(f"{redact(address)} holds {name!r} already; overwrite=True replaces a dataset")


def _datasets(h5py: ModuleType, file: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    file.visititems(lambda key, node: found.__setitem__(key, node) if isinstance(node, h5py.Dataset) else None)
    return found


def _write(h5py: ModuleType, path: str, name: str, source: Source, pieces: Iterable[Piece], settings: Settings) -> None:
    with h5py.File(path, "a") as file:
        if name in file:
            del file[name]
        dtype = _stored(source.dtype)
        options: dict[str, Any] = {}
        if source.shape and 0 not in source.shape:
            options["chunks"] = tuple(min(c, n) for c, n in zip(settings.chunks, source.shape, strict=True))
            options |= {"shuffle": True, "compression": "gzip", "compression_opts": 5}
            if settings.cparams is not None:
                options["compression_opts"] = settings.cparams.clevel
        options["fillvalue"] = source.fill
        if source.dtype.kind in "mM":
            options["fillvalue"] = np.asarray(source.fill).view(dtype)
        data = file.create_dataset(name, source.shape, dtype, **options)
        for dim, label in zip(data.dims, source.dims or (), strict=False):
            dim.label = label or ""
        _set_attrs(data, source.attrs)
        for box, values in pieces:
            data[box] = values.view(dtype)
