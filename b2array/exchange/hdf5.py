"""Datasets of HDF5 files, through the library h5py.

Sources: the HDF5 data model, and the conventions of HDF5 dimension scales.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array.errors import FormatError, UnsupportedError, warn
from b2array.exchange import formats
from b2array.exchange.formats import Box, Building, Format, Piece, Settings, Source, Storage, Tree
from b2array.format import foreign
from b2array.group.addressing import split_member
from b2array.store.atomic import AtomicFile, require_free
from b2array.store.open import open_store
from b2array.store.secrets import redact_url

__all__ = ["HDF5"]

_MAGIC = b"\x89HDF\r\n\x1a\n"
_SCALES = frozenset({
    "CLASS", "DIMENSION_LABELS", "DIMENSION_LIST", "NAME", "REFERENCE_LIST", "_NCProperties", "_Netcdf4Coordinates",
    "_Netcdf4Dimid",
})  # fmt: skip
_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable"


@contextmanager
def _tree(url: str, storage_options: Storage) -> Iterator[Tree]:
    """Open a file, or one dataset or group of it."""
    h5py = formats.require("h5py", "hdf5", "HDF5")
    address, name = split_member(url)
    with formats.local_copy(address, storage_options) as path, _opened(h5py, path, redact_url(address)) as file:
        if name and name not in file:
            raise FileNotFoundError(f"{redact_url(address)} holds no dataset {name!r}")
        with _reading(redact_url(address)):
            nodes = dict(_nodes(h5py, file, name))
        top = len(name) + 1 if name else 0

        def opened(inner: str) -> Source:
            where = f"{name}/{inner}".strip("/")
            with _reading(f"{redact_url(address)}#{where}"):
                node = file[where]
                if isinstance(node, h5py.Group):  # not among the groups of `_nodes`
                    raise FormatError(f"{redact_url(address)}#{where}: the members of this group cannot be read")
                return _source(node, f"{redact_url(address)}#{where}")

        def attrs(at: str) -> dict[str, Any]:
            return _attrs(file[at or "/"], f"{redact_url(address)}#{at}")

        groups = {at[top:]: partial(attrs, at) for at, is_group in nodes.items() if is_group}
        yield Tree(tuple(at[top:] for at, is_group in nodes.items() if not is_group), opened, groups)


def _opened(h5py: ModuleType, path: str, url: str) -> Any:
    try:
        return h5py.File(path, "r")
    except FileNotFoundError:
        raise
    except OSError as error:
        start = formats.first_bytes(path)
        found = "a damaged one" if start.startswith(_MAGIC) else foreign.described(start)
        raise FormatError(f"{url}: expected an HDF5 file, found {found} ({error})") from None


def _nodes(h5py: ModuleType, file: Any, name: str) -> Iterator[tuple[str, bool]]:
    """Yield what is at a name and below it, and whether it is a group; what cannot be opened is not.

    A dataset that only gives netCDF the length of a dimension is left out unless it has the name.
    """
    seen = set()
    waiting = [name]
    while waiting:
        at = waiting.pop()
        try:
            node = file[at or "/"]
            is_group = isinstance(node, h5py.Group)
            address = h5py.h5o.get_info(node.id).addr
            inner = [key for key in node if isinstance(node.get(key, getlink=True), h5py.HardLink)] if is_group else []
            is_array = isinstance(node, h5py.Dataset)
            is_left_out = is_array and at != name and _NO_VARIABLE in str(node.attrs.get("NAME"))
        except (KeyError, OSError, RuntimeError):
            if at == "":  # the root: nothing can be found
                raise
            yield at, False
            continue
        # In a damaged or malicious file, a group may hold itself.
        if is_group and address in seen:
            continue
        seen.add(address)
        if is_group or (is_array and not is_left_out):
            yield at, is_group
        waiting += [f"{at}/{key}".lstrip("/") for key in reversed(inner)]


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Say where damage is. For damage, HDF5 raises OSError without a number."""
    try:
        yield
    except (OSError, RuntimeError, KeyError) as error:
        if isinstance(error, UnsupportedError) or getattr(error, "errno", None) is not None:
            raise
        raise FormatError(f"{where}: {error.args[0] if error.args else error}") from None


def _attrs(node: Any, where: str) -> dict[str, Any]:
    found = {key: value for key, value in node.attrs.items() if key not in _SCALES}
    if np.shape(found.get("_FillValue", 0)) == (1,):  # as netCDF stores a number
        found["_FillValue"] = found["_FillValue"][0]
    if left := [key for key, value in found.items() if not _is_portable(value)]:
        warn(f"{where}: the attributes {left} are left out, because they mean something in their file only")
    return {key: _unpacked(value) for key, value in found.items() if key not in left}


def _is_portable(value: Any) -> bool:
    """Say whether an attribute means something outside its file, unlike references and what holds some."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return all(map(_is_portable, value.flat))
    if isinstance(value, np.ndarray | np.void):
        return not value.dtype.hasobject
    return not isinstance(value, formats.require("h5py", "hdf5", "HDF5").Reference)


def _source(data: Any, where: str) -> Source:
    def read(box: Box) -> npt.NDArray[Any]:
        with _reading(where):
            return np.asarray(data[box])

    def stored() -> int:
        with _reading(where):
            return int(data.id.get_storage_size())

    if data.shape is None:
        raise UnsupportedError(f"{where}: expected a dataset with a shape, found an empty one without a dataspace")
    dims = tuple(_dim(dim) for dim in data.dims)
    return Source(
        data.shape, np.lib.format.drop_metadata(data.dtype), read, data.chunks, attrs=_attrs(data, where),
        dims=dims if any(dims) else None, fill_value=data.fillvalue, stored=stored,
    )  # fmt: skip


def _dim(dim: Any) -> str | None:
    if dim.label:
        return str(dim.label)
    return dim[0].name.rpartition("/")[2] if len(dim) else None


def _unpacked(value: Any) -> Any:
    """Return an attribute in types of Python and NumPy. Text is `str`, however the file stores it."""
    if isinstance(value, formats.require("h5py", "hdf5", "HDF5").Empty):  # as netCDF stores an empty text
        return "" if value.dtype.kind in "SO" else np.empty(0, value.dtype)
    if isinstance(value, str):  # h5py takes other bytes for text, too
        value = np.bytes_(value.encode("utf-8", "surrogateescape"))
    kind = value.dtype.kind if isinstance(value, np.ndarray | np.generic) else ""
    if kind == "S":  # as netCDF stores other text
        with suppress(UnicodeDecodeError):
            return np.strings.decode(value, "utf-8").tolist()
    if kind == "O" and all(isinstance(each, str) for each in value.flat):
        return value.tolist()
    if kind == "V":
        return np.asarray(value)
    return value.item() if isinstance(value, np.generic) and kind in "biufSU" else value


def _stored(dtype: np.dtype[Any]) -> Any:
    """Return the type to store. h5py stores times as opaque bytes, which it recognises when it reads them."""
    return formats.require("h5py", "hdf5", "HDF5").opaque_dtype(dtype) if dtype.kind in "mM" else dtype


def _check(source: Source, settings: Settings) -> None:
    formats.refuse_objects(source, settings)
    h5py = formats.require("h5py", "hdf5", "HDF5")
    try:
        held = h5py.h5t.py_create(_stored(source.dtype), logical=True).dtype == source.dtype
    except TypeError as error:
        raise UnsupportedError(f"HDF5 cannot hold items of type {source.dtype}: {error}") from None
    if not held:
        raise UnsupportedError(f"HDF5 would change items of type {source.dtype}")
    # Try to store the attributes in a file in memory: only h5py knows what it can store.
    with h5py.File("probe", "w", driver="core", backing_store=False) as probe:
        _set_attrs(probe, source.attrs)


def _set_attrs(node: Any, attrs: Mapping[str, Any]) -> None:
    for name, value in attrs.items():
        try:
            node.attrs[name] = value
        except (TypeError, ValueError, OSError) as error:
            raise TypeError(f"HDF5 cannot hold the attribute {name!r}: {error}") from None


@contextmanager
def _building(url: str, settings: Settings, *, most: float = math.inf) -> Iterator[Building]:
    """Write datasets.

    If the URL names a group, the other contents of the file stay. Without a name, the file is replaced, unless it has
    more than `most` datasets.
    """
    h5py = formats.require("h5py", "hdf5", "HDF5")
    address, name = split_member(url)
    store = open_store(address, storage_options=settings.storage_options)
    overwrite = settings.overwrite or bool(name)
    exists = require_free(store, {"": _MAGIC}, "an HDF5 file", overwrite=overwrite) is not None
    with AtomicFile(store, overwrite=settings.overwrite or (exists and bool(name))) as path:
        if exists:
            with formats.local_copy(address, settings.storage_options) as old, _tree(old, None) as tree:
                if not name and len(tree.names) > most:
                    raise FileExistsError(
                        f"{redact_url(address)} holds several datasets: name the one to replace behind #"
                    )
                if name:
                    shutil.copyfile(old, path)
        with h5py.File(path, "a") as file:

            def full(inner: str) -> str:
                return f"{name}/{inner}".strip("/")

            def put(inner: str, source: Source, pieces: Iterable[Piece], settings: Settings) -> None:
                where = full(inner)
                kept = f"{where}.{os.urandom(8).hex()}"
                if where in file:
                    if not (settings.overwrite and isinstance(file[where], h5py.Dataset)):
                        raise FileExistsError(
                            f"{redact_url(address)} holds {where!r} already; overwrite=True replaces a dataset"
                        )
                    file.move(where, kept)
                try:
                    _put(file, where, source, pieces, settings)
                except BaseException:
                    if where in file:
                        del file[where]
                    if kept in file:  # one that cannot be read must not cost an old one
                        file.move(kept, where)
                    raise
                if kept in file:
                    del file[kept]

            yield Building(put, lambda inner, attrs: _set_attrs(file.require_group(full(inner) or "/"), attrs))


def _put(file: Any, name: str, source: Source, pieces: Iterable[Piece], settings: Settings) -> None:
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


HDF5 = Format(
    "hdf5", (".h5", ".hdf5", ".hdf", ".nc"), _tree, _check, formats.lone(partial(_building, most=1)),
    building=_building, magics=(_MAGIC,),
)  # fmt: skip
