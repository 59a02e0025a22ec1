"""Reads arrays and groups as datasets and trees."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import xarray as xr
from xarray.backends import AbstractDataStore, BackendArray, BackendEntrypoint, StoreBackendEntrypoint
from xarray.core import indexing

from b2array.array.array import NDArray, array_at
from b2array.array.frozen import Frozen
from b2array.array.schunk import SChunk
from b2array.codec.interop import readable
from b2array.errors import FormatError, UnsupportedError
from b2array.group import addressing, group
from b2array.group.group import Group
from b2array.keywords import suggest
from b2array.store.base import in_one_state
from b2array.xarray_io import loading

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Backend", "MemberStore", "Url", "arrays_of", "attributes_of", "dims_of"]

Url = str | os.PathLike[str]
Opened = Url | NDArray | Group
"""What users pass: the URL of an array or a group, or an open array or group."""

GROUPS = (".b2d", ".b2z")
_IN_GROUP = re.compile(r"\.b2[dz](?:[/#?]|$)", re.IGNORECASE)
"""Matches the name of a group, with or without a member in it."""
_FRAMES = (".b2frame", ".b2f")
_UNLIMITED = "_unlimited"
"""The attribute in which `b2array.convert` notes dimensions that were unlimited in an HDF5 file."""
_INDEX = "chunks.b2frame"


class _Lazy(BackendArray):
    """An array that is not read until xarray needs its items."""

    def __init__(
        self,
        array: NDArray | Frozen,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self._array = array
        self.shape = shape
        self.dtype = dtype

    @property
    def frozen(self) -> Frozen:
        """The array as it is committed. A promised member is read now."""
        if not isinstance(self._array, Frozen):
            self._array = Frozen(self._array)
        return self._array

    @property
    def handle(self) -> NDArray:
        """The handle that reads."""
        return cast(NDArray, self.frozen.array)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Lazy, (self.frozen, self.shape, self.dtype)

    def __deepcopy__(self, _: object) -> _Lazy:
        # A deep copy of a dataset does not read.
        return self

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return loading.read(self, key)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        return await asyncio.to_thread(self.__getitem__, key)


class MemberStore(AbstractDataStore):
    """The arrays of a group as variables, not decoded yet."""

    def __init__(self, arrays: Mapping[str, NDArray], attrs: Mapping[str, Any]) -> None:
        self.arrays = arrays
        self.attrs = attributes_of(attrs)

    def get_variables(self) -> dict[str, xr.Variable]:
        """Return the arrays as variables."""
        return {name: _variable(name, array) for name, array in self.arrays.items()}

    def get_attrs(self) -> dict[str, Any]:
        """Return the attributes of the group."""
        return self.attrs


def arrays_of(group: Group) -> dict[str, NDArray]:
    """Open the arrays directly in a group."""
    return {name: each for name, each in group.arrays().items() if isinstance(each, NDArray)}


def _variable(name: str, array: NDArray) -> xr.Variable:
    """Return an array as a variable, which is read lazily and is not decoded."""
    dims = dims_of(name, array)
    encoding = {
        "chunks": array.chunks,
        "blocks": array.blocks,
        "cparams": readable(array.cparams),
        "preferred_chunks": dict(zip(dims, array.chunks, strict=True)),
        "source": array.url,
    }
    if array.fill_value != np.zeros((), array.dtype)[()]:
        encoding["fill_value"] = array.fill_value
    data = indexing.LazilyIndexedArray(_Lazy(array, array.shape, array.dtype))
    return xr.Variable(dims, data, attributes_of(array.attrs), encoding)


def dims_of(name: str, array: NDArray) -> tuple[str, ...]:
    """Return the names of an array's dimensions. A dimension without a name is named after the variable."""
    names = array.dims or (None,) * array.ndim
    # Nameless dimensions of two variables are not the same dimension.
    return tuple(dim if dim is not None else f"{name}_{axis}" for axis, dim in enumerate(names))


def attributes_of(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as the user gave them: times are stored as arrays without dimensions."""
    result = {}
    for name, value in attrs.items():
        if name == _UNLIMITED:
            continue
        is_scalar = isinstance(value, np.ndarray) and not value.ndim
        # A dataset in memory may change what is inside its attributes.
        result[name] = value[()] if is_scalar else deepcopy(value)
    return result


class Backend(BackendEntrypoint):
    """Opens arrays and groups: ``xarray.open_dataset(url, engine="b2array")``.

    It also takes an open array or group. A file or directory that is an array becomes a dataset of one
    variable with the name of the file. Dimensions without a name are named after the variable.

    Examples
    --------
    >>> import b2array, numpy as np, xarray as xr
    >>> home = b2array.open_group("memory://weather.b2d", "w")
    >>> _ = home.create("level", data=np.arange(6).reshape(2, 3), dims=("time", "x"))
    >>> ds = xr.open_dataset("memory://weather.b2d", engine=Backend)
    >>> ds.level.sel(time=1).values.tolist(), dict(ds.sizes)
    ([3, 4, 5], {'time': 2, 'x': 3})
    """

    description = "Open Blosc2 arrays, and groups of them"
    open_dataset_parameters: ClassVar[tuple[str, ...]] = (
        "filename_or_obj",
        "drop_variables",
        "mask_and_scale",
        "decode_times",
        "concat_characters",
        "decode_coords",
        "use_cftime",
        "decode_timedelta",
        "group",
        "at",
        "storage_options",
        "fs",
    )
    supports_groups = True

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether an object is one of our files or handles, by its name if the name is sufficient."""
        if isinstance(filename_or_obj, NDArray | Group):
            return True
        if not isinstance(filename_or_obj, str | os.PathLike):
            return False
        path = os.fspath(filename_or_obj)
        suffix = os.path.splitext(path.rstrip("/"))[1].lower()  # noqa: PTH122 - it may be a URL
        if suffix == ".b2nd" or _IN_GROUP.search(path):
            return True
        # A frame need not contain an array, and a directory may have any name: look inside.
        if suffix in _FRAMES:
            return _holds_array(path)
        return Path(path, _INDEX).is_file() and _holds_array(path)

    def open_dataset(  # type: ignore[override]
        self,
        filename_or_obj: Opened,
        *,
        group: str | None = None,
        at: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
        **decoding: Any,
    ) -> xr.Dataset:
        """Open an array or the arrays of a group, perhaps `at` a snapshot; see `xarray.open_dataset`."""
        _refuse_others(decoding)

        def dataset() -> xr.Dataset:
            node = _open(filename_or_obj, group, at, storage_options, fs)
            return _decode(node, filename_or_obj, decoding)

        return in_one_state(dataset)

    def open_groups_as_dict(  # type: ignore[override]
        self,
        filename_or_obj: Opened,
        *,
        group: str | None = None,
        at: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
        **decoding: Any,
    ) -> dict[str, xr.Dataset]:
        """Open a group with everything in it, perhaps `at` a snapshot; see `xarray.open_groups`."""
        _refuse_others(decoding)

        def tree() -> dict[str, xr.Dataset]:
            root = _open(filename_or_obj, group, at, storage_options, fs)
            return {path: _decode(each, filename_or_obj, decoding) for path, each in _walk(root, "/")}

        return in_one_state(tree)

    def open_datatree(self, filename_or_obj: Opened, **options: Any) -> xr.DataTree:  # type: ignore[override]
        """Open a group with everything in it; see `xarray.open_datatree`."""
        return xr.DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))


def _refuse_others(decoding: Mapping[str, Any]) -> None:
    """Raise TypeError for a keyword that neither xarray nor this engine knows; the error says what to do."""
    known = Backend.open_dataset_parameters
    name = next((each for each in decoding if each not in known), None)
    if name is not None:
        raise TypeError(f"the engine b2array has no keyword argument {name!r}{suggest(name, known)}")


def _holds_array(url: str) -> bool:
    try:
        array_at(url).close()
    except (FormatError, UnsupportedError, OSError):
        return False
    return True


def _open(
    url: Opened,
    name: str | None,
    at: str | None,
    storage_options: Mapping[str, Any] | None,
    fs: AbstractFileSystem | None,
) -> Group | NDArray:
    inner = (name or "").strip("/")
    home: Any = url
    if not isinstance(url, NDArray | Group):
        text = os.fspath(url)
        opened: Any = group.open_group if text.rstrip("/").endswith(GROUPS) else addressing.open
        home = opened(text, at=at, storage_options=storage_options, fs=fs)
    elif at is not None:
        raise TypeError(f"at={at!r} goes with a URL; {url!r} is open already: open it with at={at!r}")
    if isinstance(home, SChunk):
        return NDArray(home._handle)  # raises the error that names super-chunks
    node = home[inner] if inner and isinstance(home, Group) else home
    if inner and (node is home or not isinstance(node, Group)):
        raise TypeError(f"{name!r} in {home.url} is not a group")
    return cast(Group | NDArray, node)


def _stem(url: Opened) -> str:
    text = url.url if isinstance(url, NDArray | Group) else os.fspath(url)
    if text == "memory":
        return "data"
    without_query, _, _ = text.partition("?")
    address, member = addressing.split_member(without_query)
    file_name = (member or address).rstrip("/").rpartition("/")[2]
    stem, _, _ = file_name.partition(".")
    return stem or "data"


def _decode(node: Group | NDArray, url: Opened, decoding: Mapping[str, Any]) -> xr.Dataset:
    if isinstance(node, NDArray):
        members, attrs, where = {_stem(url): node}, {}, node.url
    else:
        # Read the attributes first: a commit in between then shows with its own attributes, and none is missing.
        attrs, where = dict(node.attrs), node.url
        members = arrays_of(node)
    loading.open_together(_arrays_to_read(members, decoding.get("drop_variables")))
    ds = StoreBackendEntrypoint().open_dataset(MemberStore(members, attrs), **decoding)
    ds.set_close(None)  # nothing is open, and a pickle of the dataset must not contain the arrays
    ds.encoding["source"] = where
    return ds


def _arrays_to_read(members: Mapping[str, NDArray], dropped: str | Iterable[str] | None) -> list[NDArray]:
    """List the remote arrays that xarray reads to open a dataset, for indexes and to decode times."""
    without = {dropped} if isinstance(dropped, str) else set(dropped or ())
    arrays = []
    for name, array in members.items():
        if array._handle.store.can.local or name in without:
            continue
        units = array.attrs.get("units")
        has_times = isinstance(units, str) and "since" in units
        has_index = dims_of(name, array) == (name,)
        if has_times or has_index:
            arrays.append(array)
    return arrays


def _walk(node: Group | NDArray, path: str) -> Iterator[tuple[str, Group | NDArray]]:
    yield path, node
    if isinstance(node, Group):
        for name, inner in node.groups().items():
            yield from _walk(inner, f"{path.rstrip('/')}/{name}")
