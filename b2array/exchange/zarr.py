"""Zarr arrays, through the library zarr.

Sources: the specifications of Zarr, versions 2 and 3; xarray's "Zarr Encoding Specification" for names of dimensions
and for the value that marks missing items, which is the fill value in version 2 (unless it is null), and an attribute
in version 3.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import shutil
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numcodecs
import numpy as np
import numpy.typing as npt

from b2array.codec.chunk_header import FilterId
from b2array.codec.cparams import CParams
from b2array.errors import B2ArrayError, FormatError, UnsupportedError, warn
from b2array.exchange import formats
from b2array.exchange.formats import ArraySource, Box, Building, Format, Hierarchy, Options, Piece, Storage
from b2array.format import foreign
from b2array.group.addressing import split_member
from b2array.store.atomic import require_free
from b2array.store.base import Store
from b2array.store.disk import exchange
from b2array.store.open import FILE_SYSTEM, cut, join_url, open_store
from b2array.store.secrets import redact_url

__all__ = ["ZARR", "ZARR_ZIP"]

_DIMS, _MISSING = "_ARRAY_DIMENSIONS", "_FillValue"
_DOUBLE = struct.Struct("<d")
_OF_ZARR = re.compile(r"zarr\.json|\.z(array|group|attrs)|c|\d+(\.\d+)*")
"""The names of files with metadata, and of chunks."""

_UNREADABLE = (RuntimeError, ValueError, LookupError, TypeError, AttributeError, zlib.error)


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
    with warnings.catch_warnings(record=True) as unknown:  # zarr only warns about members that it skips
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

    is_consolidated = root.metadata.consolidated_metadata is not None
    check = partial(_compare_consolidated, url, storage_options, members) if is_consolidated else (lambda: None)
    yield Hierarchy(tuple(arrays), open_source, groups, error, check=check)


@contextmanager
def _tree_of_zip(url: str, storage_options: Storage) -> Iterator[Hierarchy]:
    """Open a zip archive by zarr's ZipStore, which appends each new version of a file; the last version counts."""
    address, member = split_member(url)
    with formats.local_copy(address, storage_options) as path:
        inner = f"zip://{member}::{path}"
        with _tree(inner, None) as tree:
            yield tree


def _compare_consolidated(url: str, storage_options: Storage, members: Mapping[str, Any]) -> FormatError | None:
    """Return an error that names the members whose own metadata are missing, damaged or unlike the consolidated ones.

    Zarr reads the consolidated metadata alone. Other readers, and Zarr after the next consolidation, do not.
    """
    lost, old = [], []
    for name, node in members.items():
        try:
            own = _open_node(join_url(_parts(url), name), storage_options)
        except FormatError:
            own = None
        if own is None:
            lost.append(name)
        elif _geometry(own) != _geometry(node):
            old.append(name)
    reasons = [f"no readable metadata describe {', '.join(lost)}, apart from the consolidated ones"] if lost else []
    if old:
        what = f"the consolidated metadata of {', '.join(old)} are out of date"
        reasons.append(f"{what}: zarr.consolidate_metadata writes them anew")
    return FormatError(f"{redact_url(url)}: {'; '.join(reasons)}") if reasons else None


def _geometry(node: Any) -> tuple[Any, ...]:
    """Return what says how the items of an array are stored; nothing for a group."""
    return () if isinstance(node, _zarr().Group) else (node.shape, node.dtype, node.chunks, node.shards)


def _find_orphans(url: str, storage_options: Storage, nodes: Mapping[str, Any]) -> FormatError | None:
    """Return an error that names the directories that contain Zarr's files but no node; None if no directory does."""
    groups = {name for name, node in nodes.items() if isinstance(node, _zarr().Group)}
    lost = set()
    store = open_store(_parts(url), storage_options=storage_options)
    for file in store.walk():
        place, _, last = file.rpartition("/")
        if place not in groups and _OF_ZARR.fullmatch(last):
            outers = [*accumulate(place.split("/"), "{}/{}".format)]
            if not any(name in nodes and name not in groups for name in outers):
                lost.add(next(name for name in outers if name not in groups))
    if not lost:
        return None
    names = ", ".join(sorted(lost))
    return FormatError(f"{redact_url(url)}: no readable metadata describe {names}")


def _require_list(url: str, storage_options: Storage, empty: Iterable[str]) -> None:
    """Raise UnsupportedError if groups appear to be empty only because their server lists no files."""
    for name in empty:
        where = join_url(url, name).rstrip("/")
        store = open_store(where, storage_options=storage_options)
        files: Collection[str] = ()
        # The error below is more informative than an error of the listing.
        with suppress(UnsupportedError):
            files = store.listing()
        # The list of a real group has at least the file of its metadata.
        if not {"zarr.json", ".zgroup"} & {*files}:
            raise UnsupportedError(
                f"{redact_url(where)}: its server does not list the members of this Zarr group, and no consolidated"
                " metadata name them: zarr.consolidate_metadata writes such metadata where the group is made"
            )


def _nodes_of(url: str, storage_options: Storage) -> dict[str, Any]:
    """Open all groups and arrays below a group, found by the names of files; a damaged one is None."""
    store = open_store(_parts(url), storage_options=storage_options)
    names = set()
    for file in store.walk():
        place, _, last = file.rpartition("/")
        if last in ("zarr.json", ".zarray", ".zgroup"):
            names.add(place)
    nodes = {}
    for name in sorted(names - {""}):
        node = None
        # Zarr and its codecs raise errors of many kinds; the caller reports a damaged member by its name.
        with suppress(Exception):
            node = _open_node(join_url(_parts(url), name), storage_options)
        nodes[name] = node
    return nodes


def _open_node(url: str, storage_options: Storage) -> Any:
    """Open an array or a group; return None if neither exists."""
    zarr = _zarr()
    address = _parts(url)
    # For an unknown protocol or option, this raises an error that does not look like damage.
    store = open_store(address, storage_options=storage_options if "://" in address else None)
    if "://" not in address:
        address, storage_options = store.url, None
    front, member, back = cut(address)
    if front == "zip://" and storage_options is None and "://" not in back:
        # Through fsspec, zarr 3.1 finds no nested members of an archive.
        place, options = zarr.storage.ZipStore(back.removeprefix("::"), mode="r"), None
    else:
        (place, options), member = _place(address, storage_options), ""
    with _reading(redact_url(url)):
        try:
            return zarr.open(place, path=member, mode="r", storage_options=options)
        except zarr.errors.NodeNotFoundError:
            return None


def _place(url: str, storage_options: Storage) -> tuple[Any, dict[str, Any] | None]:
    """Return a URL or a local path as an argument for zarr, and the options, without options that zarr refuses."""
    options = dict(storage_options or {})
    if "://" not in url:
        # A path, because zarr would end the name of a directory in a text at a "#".
        return Path(url), None
    fs = options.get(FILE_SYSTEM)
    if fs is None:
        return url, options or None
    return _zarr().storage.FsspecStore.from_mapper(fs.get_mapper(fs._strip_protocol(url))), None


def _parts(url: str) -> str:
    """Return the URL of a member as a path, without the ``#`` before its name."""
    address, name = split_member(url)
    return f"{address.rstrip('/')}/{name}".rstrip("/")


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turn errors about damage into FormatError with the place. Codecs raise errors of several kinds."""
    try:
        yield
    except _UNREADABLE as error:
        if isinstance(error, B2ArrayError):
            raise
        raise FormatError(f"{where}: {error}") from None


def _source(node: Any, where: str) -> ArraySource:
    """Return a Zarr array as a source, with the names of dimensions and the missing value as xarray stores them."""

    def read(box: Box) -> npt.NDArray[Any]:
        with _reading(where):
            return np.asarray(node[box])

    def count_stored() -> int | None:
        # A total of 0 bytes means that the store does not list files.
        return node.nbytes_stored() or None

    attrs = dict(node.attrs)
    if node.metadata.zarr_format == 3:
        dims = node.metadata.dimension_names
        if np.dtype(node.dtype).kind == "f" and isinstance(attrs.get(_MISSING), str):
            # Other software may have stored something else in this attribute.
            with suppress(ValueError, struct.error):
                (attrs[_MISSING],) = _DOUBLE.unpack(base64.b64decode(attrs[_MISSING]))
    elif (dims := formats.dims_of(attrs.get(_DIMS), node.ndim)) is not None:
        del attrs[_DIMS]
        # A fill value of zero is the default, and does not mark missing items.
        if node.fill_value and node.dtype.kind in "iuf":
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
    elif not source.shape or (source.dims is not None and None not in source.dims):
        # xarray needs the attribute even for a scalar, which has no dimensions to name.
        attrs[_DIMS] = list(source.dims or ())
        fitting = {"i": int, "u": int, "f": int | float}.get(source.dtype.kind, ())
        # In version 2, xarray treats items equal to the fill value as missing.
        fill = missing if isinstance(missing, fitting) else None
    if settings.cparams is not None:
        dims["compressors"] = _codec(settings.cparams, number, 1 if source.dtype.kind == "T" else source.dtype.itemsize)
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
    """Return the shape of shards, and the shape of the chunks in them; Zarr requires whole chunks in each shard."""
    pairs = zip(blocks, chunks, strict=True)
    inner = tuple(max(1, min(block, chunk)) for block, chunk in pairs)
    shards = tuple(-(-chunk // n) * n for chunk, n in zip(chunks, inner, strict=True))
    return shards, inner


def _codec(cparams: CParams, number: int, itemsize: int) -> Any:
    name, shuffles = str(cparams.codec), [fid for fid in cparams.filter_slots if fid]
    if shuffles not in ([], [FilterId.SHUFFLE], [FilterId.BITSHUFFLE]):
        raise UnsupportedError(f"Zarr supports the filters shuffle and bitshuffle, not {cparams.filters}")
    kind = "noshuffle" if not shuffles else "shuffle" if shuffles[0] == FilterId.SHUFFLE else "bitshuffle"
    if number == 2:
        return numcodecs.Blosc(name, cparams.clevel, ("noshuffle", "shuffle", "bitshuffle").index(kind))
    codecs = _zarr().codecs
    return codecs.BloscCodec(
        cname=name,
        clevel=cparams.clevel,
        shuffle=kind,
        typesize=min(itemsize, 255),
    )


def _check(source: ArraySource, settings: Options) -> None:
    """Raise UnsupportedError if Zarr cannot store the items: write one item in memory, and read it back."""
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
        is_text = source.dtype.kind == "T"
        # The type of text has no byte order, and older versions of Zarr return objects.
        same_type = is_text or probe.dtype.newbyteorder("=") == source.dtype.newbyteorder("=")
        is_stored = same_type and bool((probe[:] == one).all())
    except (TypeError, ValueError) as error:
        raise UnsupportedError(f"Zarr cannot hold items of type {source.dtype}: {error}") from None
    if not is_stored:
        raise UnsupportedError(f"Zarr would change items of type {source.dtype}")


def _write(
    url: str,
    source: ArraySource,
    pieces: Iterable[Piece],
    settings: Options,
) -> None:
    with _building(url, settings, "array") as building:
        building.put("", source, pieces, settings)


@contextmanager
def _building(
    url: str,
    settings: Options,
    kind: Literal["array", "hierarchy"] = "hierarchy",
) -> Iterator[Building]:
    """Write one array or a hierarchy: on a local disk next to the old one, which it replaces; elsewhere in place."""
    zarr = _zarr()
    (container, member), url = split_member(url), _parts(url)
    store = open_store(url, storage_options=settings.storage_options)
    outers = _outer_groups(container, member, settings.storage_options) if member else []
    there = _is_there(url, store, settings, kind)
    beside = store.temporary("")
    writes = _Writes()
    if beside is None:
        place, options = _place(url, settings.storage_options)
    else:
        place, options = _counting_store()(beside, writes), None

    number = settings.options.get("zarr_format", 3)

    def group(name: str, attrs: Mapping[str, Any]) -> Any:
        node = zarr.open_group(
            place,
            path=name,
            mode="a",
            zarr_format=number,
            storage_options=options,
        )
        return node.update_attributes(formats.json_attrs(attrs)) if attrs else node

    def put(
        name: str,
        source: ArraySource,
        pieces: Iterable[Piece],
        settings: Options,
    ) -> None:
        try:
            more = {"overwrite": settings.overwrite} if beside is None else {}
            out = _create(place, source, settings, options, name=name or None, **more)
            for box, values in pieces:
                out[box] = values
        except BaseException:
            if name:
                # The creation itself may have failed: then there is no array to remove.
                with suppress(KeyError):
                    del group("", {})[name]
            raise

    try:
        if beside is None and there and kind == "hierarchy":
            store.delete(store.walk())
        with (
            nullcontext() if beside is None else _replacing(Path(store.url).resolve(), Path(beside), writes),
            _whole(partial(group, "", {})) if kind == "hierarchy" else nullcontext(),
        ):
            yield Building(put, group)
        if member:
            _list_member(container, member, outers, number, settings.storage_options)
    except BaseException:
        if beside is None and not there:
            _remove_all(store)
        raise


@contextmanager
def _whole(open_root: Callable[[], Any]) -> Iterator[None]:
    """Make the root of a hierarchy before the block, and consolidate its metadata after it."""
    root = open_root()
    yield
    _consolidate(root)


def _remove_all(store: Store) -> None:
    """Remove what was written, as far as possible: the first error is reported, and no failure to clean up."""
    with suppress(OSError, UnsupportedError):
        store.delete(store.walk())


def _outer_groups(container: str, member: str, storage_options: Storage) -> list[str]:
    """Return the URLs of missing groups around a new member; raise ValueError if an array is in their place."""
    missing = []
    for outer in accumulate(member.split("/")[:-1], "{}/{}".format, initial=container.rstrip("/")):
        node = None
        # A missing group will be made.
        with suppress(FileNotFoundError):
            node = _open_node(outer, storage_options)
        if node is None:
            missing.append(outer)
        elif not isinstance(node, _zarr().Group):
            raise ValueError(f"{redact_url(outer)} is an array, not a group")
    return missing


def _consolidate(group: Any) -> None:
    """Write the metadata of all members into a group, so that readers open it with one request, as xarray expects."""
    with warnings.catch_warnings():
        # Zarr warns that the specification of version 3 does not describe this yet; its libraries do it all the same.
        warnings.simplefilter("ignore")
        _zarr().consolidate_metadata(group.store, path=group.path, zarr_format=group.metadata.zarr_format)


def _list_member(container: str, member: str, missing: Iterable[str], number: int, storage_options: Storage) -> None:
    """Make the missing groups around a new member, and consolidate the others again that are consolidated."""
    for outer in missing:
        place, options = _place(outer, storage_options)
        _zarr().open_group(place, mode="a", zarr_format=number, storage_options=options)
    around = accumulate(member.split("/")[:-1], "{}/{}".format, initial=container.rstrip("/"))
    for outer in [*around][::-1]:
        place, options = _place(outer, storage_options)
        group = _zarr().open_group(place, mode="r+", storage_options=options)
        if group.metadata.consolidated_metadata is not None:
            # Otherwise readers would not find the member.
            _consolidate(_zarr().open_group(place, mode="r+", storage_options=options, use_consolidated=False))


@contextmanager
def _replacing(target: Path, path: Path, writes: _Writes) -> Iterator[None]:
    """Move the directory that the block fills to the target, in exchange for an existing one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
        if target.exists():
            exchange(str(path), str(target))
        else:
            path.rename(target)
    finally:
        try:
            writes.end()
        finally:
            shutil.rmtree(path, ignore_errors=True)


class _Writes:
    """The writes to a local Zarr store that are under way: after `end`, no write is running, and none begins.

    If one write of zarr fails, zarr raises the error at once, while its tasks still write other chunks. They would make
    the directory again after it was removed.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._ended = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count the block as a write; raise OSError after the end."""
        with self._changed:
            if self._ended:
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Refuse further writes, and wait for the running ones."""
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: not self._count)


@cache
def _counting_store() -> Callable[[str, _Writes], Any]:
    """Return the class of a local Zarr store that counts its writes: a function of a path and a counter."""
    zarr = _zarr()

    class CountingStore(zarr.storage.LocalStore):  # type: ignore[misc, name-defined]
        def __init__(self, path: str, writes: _Writes) -> None:
            super().__init__(path)
            self._writes = writes

        async def set(self, key: str, value: Any) -> None:
            with self._writes.one():
                await super().set(key, value)

        async def set_if_not_exists(self, key: str, value: Any) -> None:
            with self._writes.one():
                await super().set_if_not_exists(key, value)

        def set_sync(self, key: str, value: Any) -> None:
            with self._writes.one():
                super().set_sync(key, value)

    return CountingStore


def _is_there(url: str, store: Store, settings: Options, kind: str) -> bool:
    """Return whether there is something to replace; raise FileExistsError if it is not of Zarr or must stay."""
    kinds = {"zarr.json": b"", ".zarray": b""} | ({".zgroup": b""} if kind == "hierarchy" else {})
    present = require_free(
        store,
        kinds,
        "a Zarr array",
        overwrite=settings.overwrite,
        name="zarr.json",
        alone=True,
    )
    if present is None:
        return False
    node = None
    zarr = _zarr()
    # Anything that Zarr cannot open is not a Zarr array: raise the error below.
    with suppress(OSError, ValueError):
        node = _open_node(url, settings.storage_options)
    if not isinstance(node, zarr.Array if kind == "array" else (zarr.Array, zarr.Group)):
        raise FileExistsError(f"{store.url} exists and is not a Zarr array that can be replaced")
    return True


ZARR = Format("zarr", (".zarr",), _tree, _check, _write, building=_building, keeps=formats.WITH_TEXT)
ZARR_ZIP = ZARR._replace(tree=_tree_of_zip, building=None)
"""A hierarchy or an array in a zip archive; only a source."""
