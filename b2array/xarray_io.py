"""xarray: arrays and groups as datasets and trees, and back.

A variable is an array whose dimensions have names; a dataset is a group of them, a tree one with groups in it. What
xarray keeps in attributes by the CF conventions (units and calendars of times, scales, which variables are coordinates)
is in the attributes of arrays and groups.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import xarray as xr
from xarray import conventions
from xarray.backends import AbstractDataStore, BackendArray, BackendEntrypoint, StoreBackendEntrypoint
from xarray.core import indexing

from b2array.array import creation
from b2array.array.array import NDArray
from b2array.array.dask import Frozen
from b2array.errors import FormatError, UnsupportedError
from b2array.group import group
from b2array.group.directory import Directory
from b2array.group.group import Group
from b2array.store.base import in_one_state

__all__ = ["Backend", "to_b2array"]

Url = str | os.PathLike[str]

_GROUPS = (".b2d", ".b2z")
_FRAMES = (".b2frame", ".b2f")
_INDEX = "chunks.b2frame"
_OWN = ("chunks", "blocks", "cparams", "layout")
_CODED = ("units", "calendar", "scale_factor", "add_offset", "_FillValue", "missing_value", "dtype")
"""Attributes without which stored numbers mean something else."""


class _Lazy(BackendArray):
    """An array that is read when xarray needs its items."""

    def __init__(self, array: NDArray) -> None:
        self.frozen = Frozen(array)
        self.shape = array.shape
        self.dtype = array.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        array = self.frozen.array
        if isinstance(key, indexing.VectorizedIndexer):
            return np.asarray(array.vindex[key.tuple])
        if isinstance(key, indexing.OuterIndexer):
            return np.asarray(array.oindex[key.tuple])
        return np.asarray(array[key.tuple])


class _Members(AbstractDataStore):
    """The arrays of a group as variables that are not decoded yet."""

    def __init__(self, arrays: Mapping[str, NDArray], attrs: Mapping[str, Any]) -> None:
        self.arrays = arrays
        self.attrs = dict(attrs)

    def get_variables(self) -> dict[str, xr.Variable]:
        return {name: _variable(name, array) for name, array in self.arrays.items()}

    def get_attrs(self) -> dict[str, Any]:
        return self.attrs


def _variable(name: str, array: NDArray) -> xr.Variable:
    named = array.dims or (None,) * array.ndim
    dims = [dim if dim is not None else f"{name}_{axis}" for axis, dim in enumerate(named)]
    encoding = {
        "chunks": array.chunks,
        "blocks": array.blocks,
        "cparams": array.cparams,
        "preferred_chunks": dict(zip(dims, array.chunks, strict=True)),
        "source": array.url,
    }
    data = indexing.LazilyIndexedArray(_Lazy(array))
    return xr.Variable(dims, data, dict(array.attrs), encoding)


class Backend(BackendEntrypoint):
    """Opens arrays and groups: ``xarray.open_dataset(url, engine="b2array")``.

    A file or directory that is an array becomes a dataset of one variable, which is called as the file is; dimensions
    without a name are called after the variable.

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
        "filename_or_obj", "drop_variables", "mask_and_scale", "decode_times", "concat_characters", "decode_coords",
        "use_cftime", "decode_timedelta", "group", "storage_options",
    )  # fmt: skip
    supports_groups = True

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Say whether something is one of our files, going by its name where that is enough."""
        if not isinstance(filename_or_obj, str | os.PathLike):
            return False
        path = os.fspath(filename_or_obj)
        suffix = os.path.splitext(path.rstrip("/"))[1].lower()  # noqa: PTH122 - it may be a URL
        if suffix in (".b2nd", *_GROUPS):
            return True
        if suffix in _FRAMES:
            return _holds_array(path)
        return Path(path, _INDEX).is_file() and _holds_array(path)

    def open_dataset(  # type: ignore[override]
        self, filename_or_obj: Url, *, drop_variables: str | Iterable[str] | None = None, mask_and_scale: Any = True,
        decode_times: Any = True, concat_characters: Any = True, decode_coords: Any = True, use_cftime: Any = None,
        decode_timedelta: Any = None, group: str | None = None, storage_options: Mapping[str, Any] | None = None,
    ) -> xr.Dataset:  # fmt: skip
        """Open an array or the arrays of a group; see `xarray.open_dataset`."""
        decoding = {
            "drop_variables": drop_variables, "mask_and_scale": mask_and_scale, "decode_times": decode_times,
            "concat_characters": concat_characters, "decode_coords": decode_coords, "use_cftime": use_cftime,
            "decode_timedelta": decode_timedelta,
        }  # fmt: skip
        return in_one_state(lambda: _decoded(_opened(filename_or_obj, group, storage_options), decoding))

    def open_groups_as_dict(  # type: ignore[override]
        self, filename_or_obj: Url, *, group: str | None = None, storage_options: Mapping[str, Any] | None = None,
        **decoding: Any,
    ) -> dict[str, xr.Dataset]:  # fmt: skip
        """Open a group and all in it; see `xarray.open_groups`."""

        def tree() -> dict[str, xr.Dataset]:
            found = _opened(filename_or_obj, group, storage_options)
            return {path: _decoded(each, decoding) for path, each in _walk(found, "/")}

        return in_one_state(tree)

    def open_datatree(self, filename_or_obj: Url, **options: Any) -> xr.DataTree:  # type: ignore[override]
        """Open a group and all in it; see `xarray.open_datatree`."""
        return xr.DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))


def _holds_array(url: str) -> bool:
    try:
        creation.open(url).close()
    except (FormatError, UnsupportedError, OSError):
        return False
    return True


def _opened(url: Url, name: str | None, storage_options: Mapping[str, Any] | None) -> Group | NDArray:
    text = os.fspath(url)
    if name in (None, "", "/") and not text.rstrip("/").endswith(_GROUPS):
        try:
            return creation.open(text, storage_options=storage_options)
        except (FileNotFoundError, FormatError) as error:
            try:
                return group.open_group(text, storage_options=storage_options)
            except (FileNotFoundError, FormatError):
                raise error from None
    home = group.open_group(text, storage_options=storage_options)
    if name is None or not name.strip("/"):
        return home
    found = home[name.strip("/")]
    if not isinstance(found, Group):
        raise TypeError(f"{name!r} in {home.url} is no group")
    return found


def _stem(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2].partition(".")[0] or "data"


def _decoded(found: Group | NDArray, decoding: Mapping[str, Any]) -> xr.Dataset:
    if isinstance(found, NDArray):
        members, attrs, where = {_stem(found.url): found}, {}, found.url
    else:
        # The attributes first: a commit in between then shows with its own, and nothing is missing.
        attrs, where = dict(found.attrs), found.url
        members = {name: each for name, each in found.arrays().items() if isinstance(each, NDArray)}
    ds = StoreBackendEntrypoint().open_dataset(_Members(members, attrs), **decoding)
    ds.encoding["source"] = where
    return ds


def _walk(found: Group | NDArray, path: str) -> Iterator[tuple[str, Group | NDArray]]:
    yield path, found
    if isinstance(found, Group):
        for name, inner in found.groups().items():
            yield from _walk(inner, f"{path.rstrip('/')}/{name}")


# Writing.


def to_b2array(
    ds: xr.Dataset | xr.DataTree,
    url: Url,
    *,
    mode: Literal["x", "w", "a"] = "x",
    group: str | None = None,
    append_dim: Hashable | None = None,
    region: Mapping[Hashable, slice] | None = None,
    encoding: Mapping[Hashable, Mapping[str, Any]] | None = None,
    progress: bool = False,
    scheduler: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Write a dataset, or a tree of them, as a group of arrays, in one commit.

    Variables that are dask arrays are computed and written in parallel. A reader who opens the group sees all of the
    commit or nothing of it: never a variable that has grown while its coordinate has not.

    Parameters
    ----------
    ds : xarray.Dataset or xarray.DataTree
        Names of variables and dimensions must be text.
    url : str or os.PathLike
        A directory, or a prefix that fsspec understands.
    mode : {"x", "w", "a"}
        Make a new group; one in the place of one that is there, in one commit; add variables to one.
    group : str, optional
        A group in the one at `url`.
    append_dim : str, optional
        Append to variables that are there along this dimension. Those without it stay as they are.
    region : mapping of str to slice, optional
        Write into a part of variables that are there.
    encoding : mapping, optional
        For each variable what takes the place of its ``encoding``: what the CF conventions know, and ``chunks``,
        ``blocks``, ``cparams`` and ``layout`` as `b2array.create` takes them.
    progress : bool, default False
        Show on stderr how far dask arrays have come.
    scheduler : str, callable or distributed.Client, optional
        For dask; its default otherwise.
    storage_options : mapping, optional
        For fsspec.
    **options
        What else `b2array.create` takes, for all variables.

    Raises
    ------
    FileExistsError
        There is a group, or a variable, already.
    ValueError
        What is appended or put into a region does not fit what is there. Nothing has happened then.
    TypeError
        Values or attributes cannot be stored.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> step = xr.Dataset({"level": (("time", "x"), np.zeros((1, 3)))}, {"time": [0]})
    >>> to_b2array(step, "memory://simulation.b2d")
    >>> to_b2array(step.assign_coords(time=[1]) + 1, "memory://simulation.b2d", append_dim="time")
    >>> ds = xr.open_dataset("memory://simulation.b2d", engine=Backend)
    >>> ds.time.values.tolist(), ds.level.sel(time=1).values.tolist()
    ([0, 1], [1.0, 1.0, 1.0])
    """
    if append_dim is not None and region is not None:
        raise ValueError("append_dim and region cannot be given together")
    there = append_dim is not None or region is not None
    if there and not isinstance(ds, xr.Dataset):
        raise TypeError("append_dim and region are for datasets, not for trees")
    nodes = (
        {node.path: node.to_dataset(inherit=False) for node in ds.subtree} if isinstance(ds, xr.DataTree) else {"/": ds}
    )
    write = _Writer({"progress": progress, "scheduler": scheduler}, options)
    coded = {path: _encoded(node, encoding or {}) for path, node in nodes.items()} if not there else {}
    home = _group(url, "r+" if there else mode, storage_options)
    with home.transaction(replace=mode == "w" and not there) as changes:
        if there:
            target = changes[group.strip("/")] if group and group.strip("/") else changes
            write.change(target, nodes["/"], append_dim, dict(region or {}))
        for path, (variables, attrs) in coded.items():
            inner = "/".join(part for part in ((group or "").strip("/"), path.strip("/")) if part)
            write.create(changes.create_group(inner) if inner else changes, variables, attrs)


def _group(url: Url, mode: Any, storage_options: Mapping[str, Any] | None) -> Group:
    """Open a group, as it is even if it is to be replaced: the transaction does that."""
    if mode == "w":
        with suppress(FileNotFoundError):
            Directory(os.fspath(url), storage_options or {}).check_replaceable()
            mode = "a"
    return group.open_group(url, mode, storage_options=storage_options)


Encoded = tuple[dict[str, xr.Variable], dict[str, Any]]


def _encoded(ds: xr.Dataset, encoding: Mapping[Hashable, Mapping[str, Any]]) -> Encoded:
    """Turn a dataset into variables of plain arrays, as the CF conventions say."""
    if unknown := [name for name in encoding if name not in ds.variables]:
        raise ValueError(f"encoding is given for {unknown}, which are no variables")
    for name in (*ds.variables, *ds.dims):
        if not isinstance(name, str):
            raise TypeError(f"names of variables and dimensions must be text, not {name!r}")
    variables, attrs = conventions.encode_dataset_coordinates(ds)
    replaced = {name: variable.copy(deep=False) for name, variable in variables.items()}
    for name, variable in replaced.items():
        if name in encoding:
            variable.encoding = dict(encoding[name])
    own = {
        name: {key: variable.encoding[key] for key in _OWN if key in variable.encoding}
        for name, variable in replaced.items()
    }
    coded, attrs = conventions.cf_encoder(replaced, attrs)
    for name, variable in coded.items():
        coded[name] = _plain(str(name), variable)
        coded[name].encoding = own[name]
    return {str(name): variable for name, variable in coded.items()}, dict(attrs)


def _plain(name: str, variable: xr.Variable) -> xr.Variable:
    """Give text its own type: there are no objects in arrays."""
    if variable.dtype.kind != "O":
        return variable
    values = variable.values
    for kind in (str, bytes):
        if all(isinstance(item, kind) for item in values.flat):
            return variable.copy(data=values.astype(kind))
    raise TypeError(f"variable {name!r} holds Python objects that are not all text; convert it first")


class _Writer:
    """Writes variables into a group with a transaction under way."""

    def __init__(self, running: dict[str, Any], options: dict[str, Any]) -> None:
        self.running = running
        self.options = options

    def create(self, target: Group, variables: Mapping[str, xr.Variable], attrs: Mapping[str, Any]) -> None:
        """Make a group's attributes and new variables."""
        for name, value in attrs.items():
            target.attrs[str(name)] = value
        for name, variable in variables.items():
            options = {**self.options, **self._fitting(variable), "dims": variable.dims, "attrs": variable.attrs}
            if not _is_dask(variable):
                target.create(name, data=variable.values, **options)
                continue
            options.setdefault("chunks", _dividing(variable))
            array = target.create(name, variable.shape, variable.dtype, **options)
            array.store(variable.data, **self.running)

    def _fitting(self, variable: xr.Variable) -> dict[str, Any]:
        """Return the encoding that is ours, as far as it fits: after a selection, chunks may be larger than all."""
        own = dict(variable.encoding)
        chunks = own.get("chunks")
        if isinstance(chunks, str) or chunks is None:
            own.pop("chunks", None)
        elif len(chunks) != variable.ndim or any(c > max(n, 1) for c, n in zip(chunks, variable.shape, strict=True)):
            own = {key: value for key, value in own.items() if key not in ("chunks", "blocks")}
        return own

    def change(self, target: Group, ds: xr.Dataset, append_dim: Hashable | None, region: dict[Hashable, slice]) -> None:
        """Append to variables that are there, or write into a part of them."""
        arrays = {name: each for name, each in target.arrays().items() if isinstance(each, NDArray)}
        ds = ds.copy(deep=False)
        moved = [append_dim] if append_dim is not None else [*region]
        variables = {str(name): var for name, var in ds.variables.items() if set(var.dims) & set(moved)}
        _check_members(target, arrays, variables, ds, moved, append_dim)
        coded = {name: _coded_as(name, variables[name], arrays[name]) for name in variables}
        for name, variable in coded.items():
            array = arrays[name]
            where = _place(name, array, variable, append_dim, region)
            if append_dim is not None:
                axis = variable.dims.index(append_dim)
                array.resize(
                    tuple(
                        max(n, part.stop) if i == axis else n
                        for i, (n, part) in enumerate(zip(array.shape, where, strict=True))
                    )
                )
            if _is_dask(variable):
                array.store(variable.data, where, **self.running)
            else:
                array[where] = variable.values


def _is_dask(variable: xr.Variable) -> bool:
    return variable.chunks is not None


def _dividing(variable: xr.Variable) -> Any:
    from b2array.array.dask_chunks import dividing

    return dividing(variable.chunks or (), variable.dtype.itemsize) or "auto"


def _check_members(
    target: Group, arrays: Mapping[str, NDArray], variables: Mapping[str, xr.Variable], ds: xr.Dataset,
    moved: list[Hashable], append_dim: Hashable | None,
) -> None:  # fmt: skip
    if missing := [dim for dim in moved if dim not in ds.dims]:
        raise ValueError(f"the dataset has no dimension {missing[0]!r}")
    if new := sorted(variables.keys() - arrays.keys()):
        raise ValueError(f"{target.url} has no variables {new}; mode='a' adds some")
    if append_dim is None:
        others = [name for name in ds.variables if name not in variables]
        if others:
            raise ValueError(f"variables {others} have no dimension of the region: drop them, or write them whole")
        return
    left = sorted(name for name, array in arrays.items() if append_dim in (array.dims or ()) and name not in variables)
    if left:
        raise ValueError(f"{target.url}: variables {left} would not grow along {append_dim!r} with the others")


def _coded_as(name: str, variable: xr.Variable, array: NDArray) -> xr.Variable:
    """Encode a variable as the one that is there is encoded."""
    is_time = variable.dtype.kind in "mMO"
    if not is_time and array.attrs.keys().isdisjoint(_CODED):
        _check_fits(name, variable.dtype, array.dtype)
    stored = xr.Variable(variable.dims, np.zeros((0,) * variable.ndim, array.dtype), dict(array.attrs))
    known = conventions.decode_cf_variable(
        name, stored, decode_times=is_time, decode_timedelta=variable.dtype.kind == "m"
    )
    variable = variable.copy(deep=False)
    variable.encoding = {key: value for key, value in known.encoding.items() if key in _CODED}
    coded = _plain(name, conventions.encode_cf_variable(variable, name=name))
    in_units = is_time or " since " in str(array.attrs.get("units"))
    for key in _CODED:
        before, now = stored.attrs.get(key), coded.attrs.get(key)
        if not _same(before, now) and (in_units or key not in ("units", "calendar")):
            raise ValueError(f"variable {name!r} has {key}={before!r} where it is stored, the new one {now!r}")
    _check_fits(name, coded.dtype, array.dtype)
    return coded


def _check_fits(name: str, dtype: np.dtype[Any], stored: np.dtype[Any]) -> None:
    text = stored.kind in "US" and dtype.kind == stored.kind
    if not (dtype.itemsize <= stored.itemsize if text else np.can_cast(dtype, stored, "same_kind")):
        raise ValueError(f"variable {name!r} is stored as {stored}, which cannot hold {dtype}")


def _same(a: Any, b: Any) -> bool:
    """Compare attributes, also ones that are NaN or spell the same units differently."""
    if isinstance(a, str) and isinstance(b, str):
        return a == b or _instant(a) == _instant(b)
    if isinstance(a, float | np.floating) and isinstance(b, float | np.floating):
        return bool(np.array_equal(a, b, equal_nan=True))
    return bool(np.array_equal(a, b))


def _instant(units: str) -> object:
    """Take units such as "days since 2000-01-01" apart."""
    unit, _, since = units.partition(" since ")
    try:
        return unit.strip(), np.datetime64(since.strip().replace(" ", "T"))
    except ValueError:
        return units


def _place(
    name: str, array: NDArray, variable: xr.Variable, append_dim: Hashable | None, region: Mapping[Hashable, slice]
) -> tuple[slice, ...]:
    """Return where in an array a variable goes."""
    if array.dims != variable.dims:
        raise ValueError(f"variable {name!r} is stored with dimensions {array.dims}, the new one has {variable.dims}")
    where = []
    for dim, n, length in zip(variable.dims, array.shape, variable.shape, strict=True):
        part = slice(n, n + length) if dim == append_dim else region.get(dim, slice(None))
        if dim != append_dim:
            start, stop, step = part.indices(n)
            outside = any(edge is not None and not -n <= edge <= n for edge in (part.start, part.stop))
            if outside or step != 1:
                raise ValueError(f"the region {part} of {dim!r} is not inside the {n} items of variable {name!r}")
            if stop - start != length:
                raise ValueError(f"variable {name!r}: expected {stop - start} items along {dim!r}, found {length}")
            part = slice(start, stop)
        where.append(part)
    return tuple(where)
