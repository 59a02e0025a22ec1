"""Datasets of HDF5 files, through the library h5py.

Sources: the HDF5 data model, and the conventions of HDF5 dimension scales.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array.codec.text import estimate_nbytes
from b2array.errors import B2ArrayError, FormatError, UnsupportedError, warn
from b2array.exchange import dimension_scales, formats, hdf5_chunks, hdf5_links, hdf5_ragged
from b2array.exchange.formats import ArraySource, Box, Building, Format, Hierarchy, Options, Piece, Storage
from b2array.format import foreign
from b2array.grid.partition import boxes
from b2array.group.addressing import split_member
from b2array.store import disk
from b2array.store.atomic import AtomicFile, require_free
from b2array.store.open import open_store
from b2array.store.secrets import redact_url

__all__ = ["FOLLOWING", "HDF5"]

_MAGIC = b"\x89HDF\r\n\x1a\n"
_OF_NETCDF = "_NCProperties"
_NETCDF = (".nc", ".nc4")
_AS_JSON = "json"
_OTHER_ATTRS = (_AS_JSON, "skip")
_TEXTS = 2**18
"""The number of variable-length items to read together."""


@contextmanager
def _tree(
    url: str,
    storage_options: Storage,
    *,
    follow_external: bool = False,
) -> Iterator[Hierarchy]:
    """Open a file, or one dataset or group in it. With `follow_external`, follow links into other files."""
    h5py = formats.require("h5py", "hdf5", "HDF5")
    address, name = split_member(url)
    place = redact_url(address)
    with formats.local_copy(address, storage_options) as path, _open_file(h5py, path, place) as file:

        def node_at(at: str) -> Any:
            return file[at or "/"] if follow_external else hdf5_links.open_node(h5py, file, at, f"{place}#{at}")

        if not _is_there(node_at, name):
            raise FileNotFoundError(f"{place} holds no dataset {name!r}")
        with _reading(place):
            nodes = dict(_nodes(h5py, node_at, name, place))
        top = len(name) + 1 if name else 0
        paths = {_name_of(at[top:]): at for at, is_group in nodes.items() if not is_group}
        ragged: dict[str, tuple[str, str]] = {}
        for inner, at in [*paths.items()]:
            # A dataset of variable-length rows appears as two arrays, in place of the dataset.
            if _is_ragged(h5py, node_at, at):
                del paths[inner]
                ragged |= {f"{inner}/{part}".strip("/"): (at, part) for part in hdf5_ragged.PARTS}

        def open_source(inner: str) -> ArraySource:
            at, part = ragged.get(inner, (paths.get(inner, f"{name}/{inner}".strip("/")), ""))
            where = f"{place}#{at}"
            with _reading(where):
                node = node_at(at)
                # A group that `_nodes` could not open is listed as an array.
                if isinstance(node, h5py.Group):
                    raise FormatError(f"{where}: the members of this group cannot be read")
                if not follow_external:
                    hdf5_links.check_items(h5py, node, where)
                if part:
                    return _part(h5py, node, part, where)
                return _source(node, where)

        def attrs(at: str) -> dict[str, Any]:
            return _attrs(node_at(at), f"{place}#{at}")

        groups = {at[top:]: partial(attrs, at) for at, is_group in nodes.items() if is_group}
        yield Hierarchy((*paths, *ragged), open_source, groups)


def _part(h5py: ModuleType, node: Any, part: str, where: str) -> ArraySource:
    """Return one of the arrays that stand for a dataset of variable-length rows."""
    source = hdf5_ragged.part_of(h5py, node, part, _attrs(node, where))

    def read(box: Box) -> npt.NDArray[Any]:
        with _reading(where):
            return source.read(box)

    return replace(source, read=read)


def _is_ragged(h5py: ModuleType, node_at: Callable[[str], Any], at: str) -> bool:
    try:
        return hdf5_ragged.is_ragged(h5py, node_at(at))
    except (OSError, RuntimeError, KeyError, TypeError, ValueError):
        # Reading the items will report the damage.
        return False


def _is_there(node_at: Callable[[str], Any], name: str) -> bool:
    try:
        node_at(name)
    except KeyError:
        return False
    except (OSError, RuntimeError) as error:
        # Reading the items will report the damage.
        if isinstance(error, B2ArrayError):
            raise
    return True


def _name_of(path: str) -> str:
    """Return the name of a netCDF variable, without the prefix of variables that are not coordinates."""
    outer, slash, last = path.rpartition("/")
    return outer + slash + last.removeprefix(dimension_scales.NOT_A_COORDINATE)


def _open_file(h5py: ModuleType, path: str, url: str) -> Any:
    try:
        return h5py.File(path, "r")
    except FileNotFoundError:
        raise
    except OSError as error:
        start = formats.first_bytes(path)
        described = "a damaged one" if start.startswith(_MAGIC) else foreign.describe(start)
        raise FormatError(f"{url}: expected an HDF5 file, found {described} ({error})") from None


_MANY_NAMES = 20
"""The number of names to show in a warning: a malicious file may have any number."""


def _nodes(
    h5py: ModuleType,
    node_at: Callable[[str], Any],
    name: str,
    place: str,
) -> Iterator[tuple[str, bool]]:
    """Yield the path of each node at or below a name, and whether it is a group.

    A node that cannot be opened counts as an array, so that the copy reports it. A dataset that only stores the length
    of a netCDF dimension is skipped, unless it is the node with the name.
    """
    first_names: dict[tuple[int, int], str] = {}
    other_names: list[str] = []
    waiting, left_out = [name], []
    linked: set[str] = set()
    while waiting:
        at = waiting.pop()
        try:
            node = node_at(at)
            is_group, is_array = isinstance(node, h5py.Group), isinstance(node, h5py.Dataset)
            about = h5py.h5o.get_info(node.id)
            inner = {f"{at}/{key}".lstrip("/"): _is_soft(h5py, node, key) for key in node} if is_group else {}
            is_skipped = is_array and at != name and dimension_scales.is_only_a_length(node)
        except KeyError:
            if at == "":
                raise
            if at in linked:
                left_out.append(at)
            else:
                yield at, False
            continue
        except (OSError, RuntimeError):
            # Without the root, no node can be found.
            if at == "":
                raise
            yield at, False
            continue
        if is_group and at in linked:
            left_out.append(at)
            continue
        # In a damaged or malicious file, a group may contain itself.
        address = about.fileno, about.addr
        if is_group and address in first_names:
            other_names.append(f"{at} (a name of {first_names[address] or '/'})")
            continue
        first_names[address] = at
        if is_group or (is_array and not is_skipped):
            yield at, is_group
        linked |= {path for path, is_soft in inner.items() if is_soft}
        waiting += reversed(inner)
    if left_out:
        warn(f"{place}: the links {left_out} are left out, because they lead to groups, or to nothing")
    if other_names:
        shown = ", ".join(other_names[:_MANY_NAMES]) + (", ..." if len(other_names) > _MANY_NAMES else "")
        warn(f"{place}: a group with several names is copied under one of them; left out: {shown}")


def _is_soft(h5py: ModuleType, group: Any, key: str) -> bool:
    return group.get(key, getclass=True, getlink=True) is h5py.SoftLink


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turn errors of HDF5 into FormatError with the place. HDF5 reports damage as OSError without a number."""
    try:
        yield
    except (OSError, RuntimeError, KeyError, UnicodeDecodeError) as error:
        if isinstance(error, B2ArrayError) or getattr(error, "errno", None) is not None:
            raise
        says = error if isinstance(error, UnicodeError) or not error.args else error.args[0]
        raise FormatError(f"{where}: {says}") from None


def _attrs(node: Any, where: str) -> dict[str, Any]:
    """Return the attributes of a node, except those that describe dimensions or the file, or refer to places in it."""
    attrs = {key: value for key, value in node.attrs.items() if key not in dimension_scales.HIDDEN}
    # netCDF stores a single number as an array of one number.
    of_netcdf = _OF_NETCDF in node.file.attrs or where.partition("#")[0].lower().endswith(_NETCDF)
    for key, value in attrs.items():
        if np.shape(value) == (1,) and (of_netcdf or key in formats.PACKING):
            attrs[key] = value[0]
    local = [key for key, value in attrs.items() if not _is_portable(value)]
    if local:
        warn(f"{where}: the attributes {local} are not copied, because they refer to places in their file")
    return {key: _unpack_attr(value, key in formats.PACKING) for key, value in attrs.items() if key not in local}


def _is_portable(value: Any) -> bool:
    """Return whether an attribute has a meaning outside its file; references have none."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return all(map(_is_portable, value.flat))
    if isinstance(value, np.ndarray | np.void):
        return not value.dtype.hasobject
    return not isinstance(value, formats.require("h5py", "hdf5", "HDF5").Reference)


def _source(node: Any, where: str) -> ArraySource:
    """Return a dataset as a source; choose HDF5's filters or our own, and a type for text of any length."""
    data = node

    def count_stored() -> int:
        with _reading(where):
            return int(node.id.get_storage_size())

    h5py = formats.require("h5py", "hdf5", "HDF5")
    # A dataset with a null dataspace has a type, but no items.
    if node.shape is None:
        kind = np.dtype("U1") if node.dtype.hasobject else np.lib.format.drop_metadata(node.dtype)
        return ArraySource(
            (0,),
            kind,
            lambda _: np.empty(0, kind),
            attrs=_attrs(node, where),
            stored=count_stored,
        )
    with _reading(where):
        stages = hdf5_chunks.stages_of(h5py, node, where)

    def read_stored(box: Box) -> npt.NDArray[Any]:
        with _reading(where):
            if stages is not None:
                return hdf5_chunks.read_box(h5py, node, stages, where, box)
            return np.asarray(data[box])

    dtype, fill = np.lib.format.drop_metadata(data.dtype), data.fillvalue
    text = h5py.check_string_dtype(data.dtype)
    if text is not None and text.length is None and not (text.encoding == "ascii" and _has_other_bytes(data, where)):
        data, dtype = data.asstr("utf-8"), np.dtypes.StringDType()
        fill = fill.decode("utf-8", "replace") if isinstance(fill, bytes) else 0
    read: Callable[[Box], npt.NDArray[Any]] = read_stored
    if dtype.names is not None and dtype.hasobject:
        dtype, read = _with_sized_fields(h5py, data, read_stored, where)
    dims = dimension_scales.names_of(h5py, node)
    source = ArraySource(
        node.shape,
        dtype,
        read,
        node.chunks,
        attrs=_attrs(node, where) | _names_of_values(h5py, data.dtype, node.attrs),
        dims=dims if any(dims) else None,
        fill_value=fill,
        stored=count_stored,
        unlimited=tuple(axis for axis, n in enumerate(node.maxshape) if n is None),
    )
    return formats.with_booleans(source)


def _names_of_values(
    h5py: ModuleType,
    dtype: np.dtype[Any],
    attrs: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the names of an enumeration's values as attributes of the CF conventions."""
    names = h5py.check_enum_dtype(dtype)
    if not names or dtype.kind not in "iu" or "flag_values" in attrs:
        return {}
    values = np.array([*names.values()], np.lib.format.drop_metadata(dtype))
    return {"flag_values": values, "flag_meanings": " ".join(name.replace(" ", "_") for name in names)}


def _with_sized_fields(
    h5py: ModuleType,
    data: Any,
    read: Callable[[Box], npt.NDArray[Any]],
    where: str,
) -> tuple[np.dtype[Any], Callable[[Box], npt.NDArray[Any]]]:
    """Return a type of records in which text has the size of its longest item, and a function that reads such records.

    To find the longest items, this reads all of the text.
    """
    longest: dict[str, int] = {}
    for name in data.dtype.names:
        field = data.dtype[name]
        if field.hasobject and h5py.check_string_dtype(field) is None:
            raise UnsupportedError(
                f"{where}: the field {name!r} holds {field}, which is not text and has no fixed size"
            )
        longest |= {name: 1} if field.hasobject else {}

    def decode(box: Box) -> dict[str, list[str]]:
        records = read(box)
        try:
            return {name: [item.decode("utf-8") for item in records[name].reshape(-1)] for name in longest}
        except UnicodeDecodeError as error:
            raise UnsupportedError(
                f"{where}: a field of text holds {error.object[:20]!r}, which is not UTF-8"
            ) from None

    for box in boxes(data.shape, _TEXTS, data.chunks):
        for name, texts in decode(box).items():
            longest[name] = max(longest[name], *map(len, texts))
    fields = [
        (name, f"U{longest[name]}" if name in longest else np.lib.format.drop_metadata(data.dtype[name]))
        for name in data.dtype.names
    ]
    dtype = np.dtype(fields)

    def read_sized(box: Box) -> npt.NDArray[Any]:
        records = read(box)
        new = np.zeros(records.shape, dtype)
        texts = decode(box)
        for name in data.dtype.names:
            new[name] = np.reshape(texts[name], records.shape) if name in texts else records[name]
        return new

    return dtype, read_sized


def _has_other_bytes(data: Any, where: str) -> bool:
    """Return whether a dataset of ASCII text contains other bytes, because HDF5 has no type for bytes of any length."""
    for box in boxes(data.shape, _TEXTS, data.chunks):
        with _reading(where):
            items = np.asarray(data[box], object)
        try:
            for item in items.flat:
                item.decode("utf-8")
        except UnicodeDecodeError:
            return True
    return False


def _unpack_attr(value: Any, packs: bool = False) -> Any:
    """Return an attribute in types of Python and NumPy; text becomes `str`.

    With `packs`, a number whose type Python lacks becomes an array without dimensions, and so keeps its type.
    """
    # netCDF stores an empty text in this form.
    if isinstance(value, formats.require("h5py", "hdf5", "HDF5").Empty):
        return "" if value.dtype.kind in "SO" else np.empty(0, value.dtype)
    # h5py also decodes bytes that are not text, with surrogates.
    if isinstance(value, str):
        value = np.bytes_(value.encode("utf-8", "surrogateescape"))
    kind = value.dtype.kind if isinstance(value, np.ndarray | np.generic) else ""
    if kind == "S":
        # netCDF stores text as bytes. Other software may have stored bytes that are not UTF-8: keep the bytes.
        with suppress(UnicodeDecodeError):
            return np.strings.decode(value, "utf-8").tolist()
    if kind == "O" and all(isinstance(each, str) for each in value.flat):
        return value.tolist()
    if kind == "V" or (packs and isinstance(value, np.generic) and value.dtype.char not in "dlSU"):
        return np.asarray(value)
    return value.item() if isinstance(value, np.generic) and kind in "biufSU" else value


def _type_to_store(dtype: np.dtype[Any]) -> Any:
    """Return the type to store: opaque bytes for times, which h5py recognises, and variable-length text for text."""
    h5py = formats.require("h5py", "hdf5", "HDF5")
    if dtype.kind in "UT":
        return h5py.string_dtype()
    return h5py.opaque_dtype(dtype) if dtype.kind in "mM" else dtype


def _check(source: ArraySource, settings: Options) -> None:
    formats.refuse_objects(source, settings)
    h5py = formats.require("h5py", "hdf5", "HDF5")
    try:
        is_stored = (
            source.dtype.kind in "UT"
            or h5py.h5t.py_create(_type_to_store(source.dtype), logical=True).dtype == source.dtype
        )
    except TypeError as error:
        raise UnsupportedError(f"HDF5 cannot hold items of type {source.dtype}: {error}") from None
    if not is_stored:
        raise UnsupportedError(f"HDF5 would change items of type {source.dtype}")
    # Try to store the attributes in a file in memory: only h5py can decide which types it supports.
    with h5py.File("probe", "w", driver="core", backing_store=False) as probe:
        _set_attrs(probe, _attrs_to_store(source), settings)


def _attrs_to_store(source: ArraySource) -> dict[str, Any]:
    """Return the attributes of an array. netCDF expects the value that marks missing items in the items' type."""
    attrs = dict(source.attrs)
    missing = np.asarray(attrs.get("_FillValue"))
    if source.dtype.kind in "iuf" and missing.dtype.kind in "iuf" and not missing.ndim:
        with np.errstate(all="ignore"):
            typed = missing.astype(source.dtype)
        if np.array_equal(typed, missing, equal_nan=True):
            attrs["_FillValue"] = typed
    return attrs


def _set_attrs(node: Any, attrs: Mapping[str, Any], settings: Options) -> None:
    """Set attributes. An attribute that HDF5 does not support becomes JSON text, or is dropped with "skip"."""
    for name, value in attrs.items():
        try:
            node.attrs[name] = value
        except (TypeError, ValueError, OSError) as error:
            if settings.options.get("other_attrs", _AS_JSON) == _AS_JSON:
                try:
                    node.attrs[name] = json.dumps(formats.json_attrs({name: value})[name])
                except (TypeError, ValueError, OSError):
                    raise TypeError(
                        f"neither HDF5 nor JSON can store the attribute {name!r}: {error}; other_attrs='skip' drops it"
                    ) from None


def _check_other_attrs(settings: Options) -> None:
    what = settings.options.get("other_attrs", _AS_JSON)
    if what not in _OTHER_ATTRS:
        raise ValueError(f"other_attrs must be one of {', '.join(_OTHER_ATTRS)}, not {what!r}")


@contextmanager
def _building(url: str, settings: Options, *, most: float = math.inf) -> Iterator[Building]:
    """Write datasets into a new file, or into the group that the URL names in an existing file.

    Without such a name, an existing file is replaced, unless it has more than `most` datasets.
    """
    h5py = formats.require("h5py", "hdf5", "HDF5")
    hdf5_chunks.check_compression(settings.options.get("compression", "gzip"), settings.cparams)
    _check_other_attrs(settings)
    address, name = split_member(url)
    store = open_store(address, storage_options=settings.storage_options)
    overwrite = settings.overwrite or bool(name)
    exists = require_free(store, {"": _MAGIC}, "an HDF5 file", overwrite=overwrite) is not None
    with AtomicFile(store, overwrite=settings.overwrite or (exists and bool(name))) as path:
        if exists:
            with formats.local_copy(address, settings.storage_options) as old, _tree(old, None) as tree:
                if not name and len(tree.names) > most:
                    raise FileExistsError(
                        f"{redact_url(address)} holds several datasets: name the dataset to replace after #"
                    )
                if name:
                    shutil.copyfile(old, path)
        with hdf5_chunks.without_plugins(h5py):
            opened = h5py.File(path, "a")
        with _closing(opened, path) as file:
            _reserve(file)
            written: dict[str, Sequence[str | None]] = {}
            is_netcdf = address.lower().endswith(_NETCDF)
            as_stored = formats.without_booleans if is_netcdf else _unchanged

            def full(inner: str) -> str:
                where = f"{name}/{inner}".strip("/")
                hdf5_links.require_inside(h5py, file, where, redact_url(address))
                return where

            def put(
                inner: str,
                source: ArraySource,
                pieces: Iterable[Piece],
                settings: Options,
            ) -> None:
                where = full(inner)
                kept = f"{where}.{os.urandom(8).hex()}"
                if where in file:
                    if not (settings.overwrite and isinstance(file[where], h5py.Dataset)):
                        raise FileExistsError(
                            f"{redact_url(address)} holds {where!r} already; overwrite=True replaces a dataset"
                        )
                    file.move(where, kept)
                try:
                    _put(file, where, *as_stored(source, pieces), settings)
                except BaseException:
                    if where in file:
                        del file[where]
                    # If the source fails, keep the existing dataset.
                    if kept in file:
                        file.move(kept, where)
                    raise
                if kept in file:
                    del file[kept]
                written[where] = source.dims or ()

            yield Building(
                put, lambda inner, attrs: _set_attrs(file.require_group(full(inner) or "/"), attrs, settings)
            )
            _reserve(file)
            dimension_scales.attach(h5py, file, {path: names for path, names in written.items() if any(names)})


def _unchanged(source: ArraySource, pieces: Iterable[Piece]) -> tuple[ArraySource, Iterable[Piece]]:
    return source, pieces


_METADATA_NBYTES = 2**20
"""The maximum number of bytes for attributes, indexes of chunks and other metadata between two reservations."""
_ITEM_NBYTES = 64
"""Bytes that HDF5 may need for a variable-length item, besides its content."""


@contextmanager
def _closing(file: Any, path: str) -> Iterator[Any]:
    """Close a file after the block, and free the reserved room that the file does not need."""
    with file:
        yield file
    os.truncate(path, Path(path).stat().st_size)


def _reserve(file: Any, nbytes: int = 0) -> None:
    """Reserve room for `nbytes` more bytes and for metadata; OSError if the disk has too little room.

    Otherwise a full disk would make a write of HDF5 fail; then HDF5 cannot close the file, and ends the process later.
    """
    file.flush()
    disk.reserve(file.filename, file.id.get_filesize() + nbytes + nbytes // 8 + _METADATA_NBYTES)


def _put(
    file: Any,
    name: str,
    source: ArraySource,
    pieces: Iterable[Piece],
    settings: Options,
) -> None:
    dtype = _type_to_store(source.dtype)
    options: dict[str, Any] = {}
    # HDF5 has no chunks for scalars and empty arrays, and compresses only chunks.
    if source.shape and 0 not in source.shape:
        options["chunks"] = tuple(min(c, n) for c, n in zip(settings.chunks, source.shape, strict=True))
        options |= {"shuffle": True, "compression": "gzip", "compression_opts": 5}
        if settings.cparams is not None:
            options["compression_opts"] = settings.cparams.clevel
    # In HDF5 only datasets with chunks can grow.
    if "chunks" in options and source.unlimited:
        options["maxshape"] = tuple(None if axis in source.unlimited else n for axis, n in enumerate(source.shape))
    is_text = source.dtype.kind in "UT"
    compression = settings.options.get("compression", "gzip")
    # Chunks of text hold addresses in the file, which only HDF5 can resolve.
    is_direct = "chunks" in options and compression != "gzip" and not is_text
    if is_direct:
        how = hdf5_chunks.compressing(
            compression,
            source.dtype.itemsize,
            options["chunks"],
            settings.cparams,
        )
        # Blosc shuffles the items itself.
        options |= {"shuffle": False, **how}
    if is_text:
        options["fillvalue"] = str(source.fill)
    else:
        options["fillvalue"] = np.asarray(source.fill).view(dtype) if source.dtype.kind in "mM" else source.fill
    _reserve(file)
    h5py = formats.require("h5py", "hdf5", "HDF5")
    with hdf5_chunks.making_direct(h5py, compression) if is_direct else nullcontext():
        data = file.create_dataset(name, source.shape, dtype, **options)
    _set_attrs(data, _attrs_to_store(source), settings)
    pieces = _with_room(file, pieces)
    if is_direct:
        hdf5_chunks.write(
            data,
            pieces,
            source.fill,
            compression,
            settings.cparams,
            settings.blocks,
        )
        return
    for box, values in pieces:
        data[box] = values.astype(object) if is_text else values.view(dtype)


def _with_room(file: Any, pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Reserve room for each piece before HDF5 writes it."""
    for box, values in pieces:
        extra = values.size * _ITEM_NBYTES if values.dtype.kind in "OUT" else 0
        if values.dtype.kind == "T":
            extra += estimate_nbytes(values)
        _reserve(file, values.nbytes + extra)
        yield box, values


HDF5 = Format(
    "hdf5",
    (".h5", ".hdf5", ".hdf", ".he5", *_NETCDF),
    _tree,
    _check,
    formats.lone(partial(_building, most=1)),
    building=_building,
    keeps=formats.WITH_TEXT,
    magics=(_MAGIC,),
)
FOLLOWING = HDF5._replace(tree=partial(_tree, follow_external=True))
"""The format HDF5 with `follow_external`: links and datasets may refer to other files."""
