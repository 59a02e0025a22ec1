"""Zarr arrays, through the library zarr.

Sources: the specifications of Zarr, versions 2 and 3; the attribute ``_ARRAY_DIMENSIONS`` is xarray's convention.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np

from b2array.codec.cparams import CParams
from b2array.codec.header import FilterId
from b2array.errors import UnsupportedError
from b2array.store.atomic import require_free
from b2array.store.base import Store
from b2array.store.open import open_store
from b2array.store.secrets import redact
from b2array.tools.formats import Piece, Settings, Source, Storage, json_attrs, only, refuse_objects, require

__all__ = ["check_zarr", "open_zarr", "write_zarr"]

_DIMS = "_ARRAY_DIMENSIONS"


def open_zarr(url: str, storage_options: Storage) -> Source:
    """Open an array; see `b2array.tools.formats.Format`."""
    zarr = require("zarr", "zarr", ".zarr")
    try:
        node = zarr.open(_address(url), mode="r", storage_options=_remote(url, storage_options))
    except zarr.errors.NodeNotFoundError:
        raise FileNotFoundError(f"{redact(url)} does not exist, or is not a Zarr array") from None
    if isinstance(node, zarr.Group):
        arrays = dict(node.members(max_depth=None))
        node = only({name: each for name, each in arrays.items() if isinstance(each, zarr.Array)}, url)
    attrs = dict(node.attrs)
    dims = node.metadata.dimension_names if node.metadata.zarr_format == 3 else attrs.pop(_DIMS, None)
    chunks, blocks = (node.shards, node.chunks) if node.shards else (node.chunks, None)
    fill = 0 if node.fill_value is None else node.fill_value
    return Source(
        tuple(node.shape), np.dtype(node.dtype), lambda box: np.asarray(node[box]), tuple(chunks),
        None if blocks is None else tuple(blocks), attrs, None if dims is None else tuple(dims), fill,
    )  # fmt: skip


def _address(url: str) -> str:
    return open_store(url).url if "://" not in url else url


def _remote(url: str, storage_options: Storage) -> dict[str, Any] | None:
    return dict(storage_options) if storage_options and "://" in url else None


def _create(url: Any, source: Source, settings: Settings, storage_options: Storage, **more: Any) -> Any:
    zarr = require("zarr", "zarr", ".zarr")
    number = settings.options.get("zarr_format", 3)
    attrs = json_attrs(source.attrs)
    dims: dict[str, Any] = {}
    if source.dims is not None and number == 3:
        dims["dimension_names"] = source.dims
    elif source.dims is not None and None not in source.dims:
        attrs[_DIMS] = list(source.dims)
    if settings.cparams is not None:
        dims["compressors"] = _codec(settings.cparams, number, source.dtype.itemsize)
    chunks = tuple(max(1, c) for c in settings.chunks)
    with warnings.catch_warnings():
        # Zarr warns about types without a specification, but reads them back correctly.
        warnings.simplefilter("ignore")
        return zarr.create_array(
            url, shape=source.shape, dtype=source.dtype, chunks=chunks,
            fill_value=source.fill, attributes=attrs, zarr_format=number, storage_options=storage_options,
            **dims, **more,
        )  # fmt: skip


def _codec(cparams: CParams, number: int, itemsize: int) -> Any:
    name, shuffles = str(cparams.codec), [fid for fid in cparams.filter_slots if fid]
    if shuffles not in ([], [FilterId.SHUFFLE], [FilterId.BITSHUFFLE]):
        raise UnsupportedError(f"Zarr has no filters but shuffle or bitshuffle, not {cparams.filters}")
    kind = "noshuffle" if not shuffles else "shuffle" if shuffles[0] == FilterId.SHUFFLE else "bitshuffle"
    if number == 2:
        return numcodecs.Blosc(name, cparams.clevel, ("noshuffle", "shuffle", "bitshuffle").index(kind))
    codecs = require("zarr.codecs", "zarr", ".zarr")
    return codecs.BloscCodec(cname=name, clevel=cparams.clevel, shuffle=kind, typesize=min(itemsize, 255))


def check_zarr(source: Source, settings: Settings) -> None:
    """Raise an error for arrays that Zarr cannot hold; see `b2array.tools.formats.Format`."""
    refuse_objects(source, settings)
    zarr = require("zarr", "zarr", ".zarr")
    json_attrs(source.attrs)
    small = Source((1,), source.dtype, source.read, fill_value=source.fill_value)
    try:
        memory = zarr.storage.MemoryStore()
        probe = _create(memory, small, settings._replace(chunks=(1,)), None)
        one = np.ones(1, source.dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            probe[:] = one
            probe = zarr.open_array(memory, mode="r")
        # Zarr changes the bytes of some types.
        held = probe.dtype.newbyteorder("=") == source.dtype.newbyteorder("=") and bool((probe[:] == one).all())
    except (TypeError, ValueError) as error:
        raise UnsupportedError(f"Zarr cannot hold items of type {source.dtype}: {error}") from None
    if not held:
        raise UnsupportedError(f"Zarr would not give items of type {source.dtype} back as they are")


def write_zarr(url: str, source: Source, pieces: Iterable[Piece], settings: Settings) -> None:
    """Write an array; see `b2array.tools.formats.Format`."""
    store = open_store(url, storage_options=settings.storage_options)
    there = _is_there(url, store, settings)
    path = store.temporary("")
    if path is not None:
        _write_beside(Path(store.url), Path(path), source, pieces, settings)
        return
    try:
        out = _create(url, source, settings, dict(settings.storage_options or {}), overwrite=settings.overwrite)
        for box, values in pieces:
            out[box] = values
    except BaseException:
        if not there:
            with suppress(OSError, UnsupportedError):
                store.delete(store.walk())
        raise


def _write_beside(target: Path, path: Path, source: Source, pieces: Iterable[Piece], settings: Settings) -> None:
    """Write a temporary directory, and exchange it with the existing one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    old = path.with_name(f"{path.name}-old")
    try:
        out = _create(str(path), source, settings, None)
        for box, values in pieces:
            out[box] = values
        if target.exists():
            target.rename(old)
        path.rename(target)
    except BaseException:
        if old.exists():
            old.rename(target)
        raise
    finally:
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _is_there(url: str, store: Store, settings: Settings) -> bool:
    """Say whether an array is to be replaced; raise FileExistsError if it must not be, or is something else."""
    kinds = {"zarr.json": b"", ".zarray": b""}
    found = require_free(store, kinds, "a Zarr array", overwrite=settings.overwrite, name="zarr.json", alone=True)
    if found is None:
        return False
    zarr = require("zarr", "zarr", ".zarr")
    try:
        node = zarr.open(_address(url), mode="r", storage_options=_remote(url, settings.storage_options))
    except (zarr.errors.NodeNotFoundError, OSError, ValueError):
        node = None
    if not isinstance(node, zarr.Array):
        raise FileExistsError(f"{store.url} exists and is not a Zarr array that can be replaced")
    return True
