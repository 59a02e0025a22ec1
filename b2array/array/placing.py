"""Where a new frame goes, and what it may replace; and its metalayers in their stored form."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from b2array.engine.replacing import frame_in, is_part
from b2array.engine.source import FRAME_NAME
from b2array.format.attributes import encode_attr
from b2array.format.header import FIRST_BYTES, FrameType
from b2array.store.atomic import require_free
from b2array.store.base import Store
from b2array.store.memory import MemoryStore
from b2array.store.open import open_store

__all__ = ["encoded_metalayers", "named", "place_new"]


def encoded_metalayers(meta: Mapping[str, Any] | None) -> list[tuple[str, bytes]]:
    r"""Return metalayers in their stored form: bytes as they are, other values as msgpack; TypeError if that fails.

    Examples
    --------
    >>> encoded_metalayers({"as it is": b"1", "packed": 1})
    [('as it is', b'1'), ('packed', b'\x01')]
    """
    return [(name, raw if isinstance(raw, bytes) else encode_attr(raw)) for name, raw in named(meta)]


def named(layers: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    """Return names and values; TypeError if the argument is no mapping from str."""
    if layers is None:
        return []
    if not isinstance(layers, Mapping):
        raise TypeError(f"attributes and metalayers are given as a mapping, not as {type(layers).__name__}")
    for name in layers:
        if not isinstance(name, str):
            raise TypeError(f"names of attributes and metalayers are str, not {type(name).__name__}")
    return list(layers.items())


def place_new(
    url: str | os.PathLike[str] | None,
    layout: str,
    storage_options: Mapping[str, Any] | None,
    *,
    overwrite: bool,
) -> tuple[Store, FrameType]:
    """Find the store for a new frame, and choose its kind. A new frame replaces only a frame or an empty file."""
    if layout not in ("auto", "contiguous", "sparse"):
        raise ValueError(f"layout must be 'auto', 'contiguous' or 'sparse', not {layout!r}")
    if url is None:
        return MemoryStore(), FrameType.SPARSE if layout == "sparse" else FrameType.CONTIGUOUS
    store = open_store(url, storage_options=storage_options)
    if layout == "auto":
        layout = "contiguous" if store.appendable and not store.is_prefix else "sparse"
    if layout == "contiguous" and store.is_prefix:
        raise ValueError(f"a contiguous frame is one file, but {store.url} ends with a slash")
    frame_type = FrameType.SPARSE if layout == "sparse" else FrameType.CONTIGUOUS
    _make_room(store, frame_type, overwrite=overwrite)
    return store, frame_type


def _make_room(store: Store, frame_type: FrameType, *, overwrite: bool) -> None:
    name = FRAME_NAME if frame_type == FrameType.SPARSE else ""
    kinds = {"": FIRST_BYTES, FRAME_NAME: FIRST_BYTES}
    found = require_free(store, kinds, "a frame", overwrite=overwrite, name=name)
    if found in (None, name):
        return
    if frame_in(store) is None:
        old, new = ("sparse", "contiguous") if found else ("contiguous", "sparse")
        raise FileExistsError(f"{store.url} is a {old} frame that cannot be read, which a {new} one cannot replace")
    if found and store.beside(directory=False) is not None:
        others = [name for name in store.walk() if not is_part(name)]
        if others:
            raise FileExistsError(f"{store.url} is a directory with more than a frame in it: {others[0]}")
