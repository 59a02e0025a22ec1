"""Zarr arrays, through the library zarr.

Sources: the specifications of Zarr, versions 2 and 3; xarray's "Zarr Encoding Specification" for names of dimensions
and the value that marks missing items: in version 2 the fill value, if it is not null; in version 3 an attribute.
"""

from __future__ import annotations

import base64
import re
import shutil
import struct
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numcodecs
import numpy as np
import numpy.typing as npt

from b2array.codec.cparams import CParams
from b2array.codec.header import FilterId
from b2array.errors import FormatError, UnsupportedError, warn
from b2array.exchange import formats
from b2array.exchange.formats import ArraySource, Box, Building, Format, Hierarchy, Options, Piece, Storage
from b2array.format import foreign
from b2array.group.addressing import split_member
from b2array.store.atomic import require_free
from b2array.store.base import Store
from b2array.store.disk import exchange
from b2array.store.open import FILE_SYSTEM, open_store
from b2array.store.secrets import redact_url

__all__ = ["ZARR"]

_DIMS, _MISSING = "_ARRAY_DIMENSIONS", "_FillValue"
_DOUBLE = struct.Struct("<d")
_OF_ZARR = re.compile(r"zarr\.json|\.z(array|group|attrs)|c|\d+(\.\d+)*")
"""Names of metadata and of chunks."""


def _zarr() -> ModuleType:
    return formats.require("zarr", "zarr", ".zarr")


@contextmanager
def _tree(url: str, storage_options: Storage) -> Iterator[Hierarchy]:
    root = _open_node(url, storage_options)
    if root is None:
        if Path(_parts(url)).is_file():
            described = foreign.describe(formats.first_bytes(_parts(url)))
            raise FormatError(f"{redact_url(url)}: expected a directory of Zarr, found {described}")
        raise FileNotFoundError(f"{redact_url(url)} does not exist, or is not a Zarr array")
    if not isinstance(root, _zarr().Group):
        yield Hierarchy(("",), lambda _: _source(root, redact_url(url)))
        return
    groups: dict[str, Callable[[], Mapping[str, Any]]] = {"": lambda: dict(root.attrs)}
    with warnings.catch_warnings(record=True) as unknown:  # zarr only warns about what it skips
        warnings.filterwarnings("always", "Object at .* is not recognized as a component of a Zarr hierarchy")
        try:
            members = dict(sorted(root.members(max_depth=None)))
        except Exception:  # noqa: BLE001 - metadata that are damaged raise errors of many kinds
            members = _nodes_of(url, storage_options)
    error = None
    if unknown:
        try:
            error = _find_orphans(url, storage_options, {"": root, **members})
        except UnsupportedError:  # a web server whose pages are lists for zarr
            for each in unknown:
                warn(str(each.message))
    if root.metadata.consolidated_metadata is None:
        inhabited = {name.rpartition("/")[0] for name in members}
        groups_found = [name for name, node in {"": root, **members}.items() if isinstance(node, type(root))]
        _require_list(_parts(url), storage_options, [name for name in groups_found if name not in inhabited])
    arrays = []
    for name, node in members.items():
        if isinstance(node, type(root)):
            groups[name] = partial(lambda node: dict(node.attrs), node)
        else:
            arrays.append(name)

    def open_source(name: str) -> ArraySource:
        where = f"{redact_url(url)}/{name}"
        with _reading(where):
            return _source(members[name] or root[name], where)

    yield Hierarchy(tuple(arrays), open_source, groups, error)


def _find_orphans(url: str, storage_options: Storage, nodes: Mapping[str, Any]) -> FormatError | None:
    """Return an error that names directories with files that look like Zarr's but belong to no known node."""
    groups = {name for name, node in nodes.items() if isinstance(node, _zarr().Group)}
    lost = set()
    for file in open_store(_parts(url), storage_options=storage_options).walk():
        place, _, last = file.rpartition("/")
        if place not in groups and _OF_ZARR.fullmatch(last):
            outers = [*accumulate(place.split("/"), "{}/{}".format)]
            if not any(name in nodes and name not in groups for name in outers):
                lost.add(next(name for name in outers if name not in groups))
    if not lost:
        return None
    return FormatError(f"{redact_url(url)}: no metadata that can be read tell what is in {', '.join(sorted(lost))}")


def _require_list(url: str, storage_options: Storage, empty: Iterable[str]) -> None:
    """Raise UnsupportedError if groups only look empty, because their server lists no files, not even their own."""
    for name in empty:
        where = f"{url}/{name}".rstrip("/")
        files: Collection[str] = ()
        # Without a list of files the error below tells what helps.
        with suppress(UnsupportedError):
            files = open_store(where, storage_options=storage_options).listing()
        if not {"zarr.json", ".zgroup"} & {*files}:
            raise UnsupportedError(
                f"{redact_url(where)}: its server does not list the members of this Zarr group, and no consolidated"
                " metadata name them: zarr.consolidate_metadata writes these where the group is made"
            )


def _nodes_of(url: str, storage_options: Storage) -> dict[str, Any]:
    """Find everything below a group by the names of files: groups are opened, arrays and damaged members are None."""
    files = open_store(_parts(url), storage_options=storage_options).walk()
    names = {
        file.rpartition("/")[0] for file in files if file.rpartition("/")[2] in ("zarr.json", ".zarray", ".zgroup")
    }
    nodes = {}
    for name in sorted(names - {""}):
        node = None
        # Zarr and its codecs raise many kinds of errors; the caller reports a damaged member by its name.
        with suppress(Exception):
            node = _open_node(f"{_parts(url)}/{name}", storage_options)
        nodes[name] = node
    return nodes


def _open_node(url: str, storage_options: Storage) -> Any:
    """Open an array or group; None if nothing is there."""
    zarr = _zarr()
    address = _parts(url)
    if "://" not in address:
        address, storage_options = open_store(address).url, None
    place, options = _place(address, storage_options)
    try:
        return zarr.open(place, mode="r", storage_options=options)
    except zarr.errors.NodeNotFoundError:
        return None


def _place(url: str, storage_options: Storage) -> tuple[Any, dict[str, Any] | None]:
    """Return what zarr takes for a URL or a local path, and the options: it refuses any that it does not use."""
    options = dict(storage_options or {})
    if "://" not in url:
        return Path(url), None  # zarr would cut the name of a directory at a "#"
    fs = options.get(FILE_SYSTEM)
    if fs is None:
        return url, options or None
    return _zarr().storage.FsspecStore.from_mapper(fs.get_mapper(fs._strip_protocol(url))), None


def _parts(url: str) -> str:
    """Return the URL of a member, whose name may follow ``#``."""
    address, name = split_member(url)
    return f"{address.rstrip('/')}/{name}".rstrip("/")


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Say where damage is. For damage, codecs raise several kinds of errors."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, zlib.error) as error:
        raise FormatError(f"{where}: {error}") from None


def _source(node: Any, where: str) -> ArraySource:
    def read(box: Box) -> npt.NDArray[Any]:
        with _reading(where):
            return np.asarray(node[box])

    def count_stored() -> int | None:
        return node.nbytes_stored() or None  # nothing at all: the store does not list files

    attrs = dict(node.attrs)
    if node.metadata.zarr_format == 3:
        dims = node.metadata.dimension_names
        if np.dtype(node.dtype).kind == "f" and isinstance(attrs.get(_MISSING), str):
            with suppress(ValueError, struct.error):  # others may note something else there
                (attrs[_MISSING],) = _DOUBLE.unpack(base64.b64decode(attrs[_MISSING]))
    elif (dims := formats.dims_of(attrs.get(_DIMS), node.ndim)) is not None:
        del attrs[_DIMS]
        if node.fill_value and node.dtype.kind in "iuf":  # zero is the default, and marks nothing
            attrs.setdefault(_MISSING, node.fill_value.item())
    chunks, blocks = (node.shards, node.chunks) if node.shards else (node.chunks, None)
    return ArraySource(
        tuple(node.shape),
        np.dtype(node.dtype),
        read,
        tuple(chunks),
        None if blocks is None else tuple(blocks),
        attrs,
        None if dims is None else tuple(dims),
        0 if node.fill_value is None else node.fill_value,
        count_stored,
        is_sharded=blocks is not None,
    )


def _create(
    url: Any,
    source: ArraySource,
    settings: Options,
    storage_options: Storage,
    **more: Any,
) -> Any:
    zarr = _zarr()
    number = settings.options.get("zarr_format", 3)
    attrs = formats.json_attrs(source.attrs)
    fill, missing = source.fill, attrs.get(_MISSING)
    dims: dict[str, Any] = {}
    if number == 3:
        if source.dims is not None:
            dims["dimension_names"] = source.dims
        if source.dtype.kind == "f" and isinstance(missing, int | float):
            attrs[_MISSING] = base64.b64encode(_DOUBLE.pack(missing)).decode()
    elif source.dims is not None and None not in source.dims:
        attrs[_DIMS] = list(source.dims)
        fitting = {"i": int, "u": int, "f": int | float}.get(source.dtype.kind, ())
        fill = missing if isinstance(missing, fitting) else None  # the fill value itself would mark missing items
    if settings.cparams is not None:
        dims["compressors"] = _codec(settings.cparams, number, source.dtype.itemsize)
    chunks = tuple(max(1, c) for c in settings.chunks)
    if number == 3 and settings.blocks is not None and (source.is_sharded or settings.given[1] is not None):
        dims["shards"], chunks = _shards(chunks, settings.blocks)
    with warnings.catch_warnings():
        # Zarr warns about types without a specification, but reads them back correctly.
        warnings.simplefilter("ignore")
        return zarr.create_array(
            url,
            shape=source.shape,
            dtype=source.dtype,
            chunks=chunks,
            fill_value=fill,
            attributes=attrs,
            zarr_format=number,
            storage_options=storage_options,
            **dims,
            **more,
        )


def _shards(chunks: tuple[int, ...], blocks: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shards and the chunks in them: Zarr has whole chunks in each shard."""
    inner = tuple(max(1, min(block, chunk)) for block, chunk in zip(blocks, chunks, strict=True))
    return tuple(-(-chunk // n) * n for chunk, n in zip(chunks, inner, strict=True)), inner


def _codec(cparams: CParams, number: int, itemsize: int) -> Any:
    name, shuffles = str(cparams.codec), [fid for fid in cparams.filter_slots if fid]
    if shuffles not in ([], [FilterId.SHUFFLE], [FilterId.BITSHUFFLE]):
        raise UnsupportedError(f"Zarr has no filters but shuffle or bitshuffle, not {cparams.filters}")
    kind = "noshuffle" if not shuffles else "shuffle" if shuffles[0] == FilterId.SHUFFLE else "bitshuffle"
    if number == 2:
        return numcodecs.Blosc(name, cparams.clevel, ("noshuffle", "shuffle", "bitshuffle").index(kind))
    codecs = _zarr().codecs
    return codecs.BloscCodec(cname=name, clevel=cparams.clevel, shuffle=kind, typesize=min(itemsize, 255))


def _check(source: ArraySource, settings: Options) -> None:
    formats.refuse_objects(source, settings)
    zarr = _zarr()
    formats.json_attrs(source.attrs)
    settings = settings._replace(chunks=(1,), blocks=(1,))
    small = ArraySource((1,), source.dtype, source.read, fill_value=source.fill_value)
    try:
        memory = zarr.storage.MemoryStore()
        probe = _create(memory, small, settings, None)
        one = np.ones(1, source.dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            probe[:] = one
            probe = zarr.open_array(memory, mode="r")
        # Zarr changes the bytes of some types.
        is_stored = probe.dtype.newbyteorder("=") == source.dtype.newbyteorder("=") and bool((probe[:] == one).all())
    except (TypeError, ValueError) as error:
        raise UnsupportedError(f"Zarr cannot hold items of type {source.dtype}: {error}") from None
    if not is_stored:
        raise UnsupportedError(f"Zarr would not give items of type {source.dtype} back as they are")


def _write(url: str, source: ArraySource, pieces: Iterable[Piece], settings: Options) -> None:
    with _building(url, settings, "array") as building:
        building.put("", source, pieces, settings)


@contextmanager
def _building(
    url: str,
    settings: Options,
    kind: Literal["array", "hierarchy"] = "hierarchy",
) -> Iterator[Building]:
    """Write one array or a hierarchy.

    In a local directory it is made next to what it replaces, elsewhere in place.
    """
    zarr = _zarr()
    (container, member), url = split_member(url), _parts(url)
    store = open_store(url, storage_options=settings.storage_options)
    outers = _outer_groups(container, member, settings.storage_options) if member else []
    there = _is_there(url, store, settings, kind)
    beside = store.temporary("")
    place, options = _place(beside or url, settings.storage_options)

    number = settings.options.get("zarr_format", 3)

    def group(name: str, attrs: Mapping[str, Any]) -> Any:
        node = zarr.open_group(place, path=name, mode="a", zarr_format=number, storage_options=options)
        return node.update_attributes(formats.json_attrs(attrs)) if attrs else node

    def put(name: str, source: ArraySource, pieces: Iterable[Piece], settings: Options) -> None:
        try:
            more = {"overwrite": settings.overwrite} if beside is None else {}
            out = _create(place, source, settings, options, name=name or None, **more)
            for box, values in pieces:
                out[box] = values
        except BaseException:
            if name:
                # The failure may have come before the array was created.
                with suppress(KeyError):
                    del group("", {})[name]
            raise

    try:
        if beside is None and there and kind == "hierarchy":
            store.delete(store.walk())
        with nullcontext() if beside is None else _replacing(Path(store.url).resolve(), Path(beside)):
            if kind == "hierarchy":
                group("", {})
            yield Building(put, group)
        for outer in outers:
            around, _ = _place(outer, settings.storage_options)
            zarr.open_group(around, mode="a", zarr_format=number, storage_options=options)
    except BaseException:
        if beside is None and not there:
            # The first error is the one to report, not that cleaning up failed as well.
            with suppress(OSError, UnsupportedError):
                store.delete(store.walk())
        raise


def _outer_groups(container: str, member: str, storage_options: Storage) -> list[str]:
    """Return the groups around a new member that are to be made; ValueError if one of them is an array."""
    missing = []
    for outer in accumulate(member.split("/")[:-1], "{}/{}".format, initial=container.rstrip("/")):
        node = None
        # A missing group is created.
        with suppress(FileNotFoundError):
            node = _open_node(outer, storage_options)
        if node is None:
            missing.append(outer)
        elif not isinstance(node, _zarr().Group):
            raise ValueError(f"{redact_url(outer)} is an array, not a group")
    return missing


@contextmanager
def _replacing(target: Path, path: Path) -> Iterator[None]:
    """Yield a temporary directory for the block to fill, and then exchange it with the existing one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
        if target.exists():
            exchange(str(path), str(target))
        else:
            path.rename(target)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _is_there(url: str, store: Store, settings: Options, kind: str) -> bool:
    """Say whether something is to be replaced; raise FileExistsError if it must not be, or is something else."""
    kinds = {"zarr.json": b"", ".zarray": b""} | ({".zgroup": b""} if kind == "hierarchy" else {})
    present = require_free(store, kinds, "a Zarr array", overwrite=settings.overwrite, name="zarr.json", alone=True)
    if present is None:
        return False
    node = None
    zarr = _zarr()
    # What Zarr cannot open is not a Zarr array: see below.
    with suppress(OSError, ValueError):
        node = _open_node(url, settings.storage_options)
    if not isinstance(node, zarr.Array if kind == "array" else (zarr.Array, zarr.Group)):
        raise FileExistsError(f"{store.url} exists and is not a Zarr array that can be replaced")
    return True


ZARR = Format("zarr", (".zarr",), _tree, _check, _write, building=_building)
