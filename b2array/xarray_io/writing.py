"""Writes datasets, trees and single arrays as groups of arrays, each in one commit."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Unpack, cast
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import xarray as xr

from b2array.array import dask, dask_chunks
from b2array.array.array import NDArray
from b2array.array.dask import Region, Write
from b2array.array.drafts import VariableKeywords, takes
from b2array.array.frozen import Shared
from b2array.codec.cparams import given_or_default
from b2array.codec.interop import readable
from b2array.errors import ConflictError, UnsupportedError, warn
from b2array.group import group, whole
from b2array.group.directory import Directory
from b2array.group.group import Group
from b2array.group.unpacked import Unpacked, is_place
from b2array.store.open import address_of
from b2array.workers.fork import Origin, merge_changes, origin_of
from b2array.xarray_io.backend import Url
from b2array.xarray_io.encoding import as_stored, attributes, detected, encoded, is_dask, marked, place

if TYPE_CHECKING:
    import dask.array as da
    from dask.delayed import Delayed
    from fsspec import AbstractFileSystem

__all__ = ["KEYWORDS", "Mode", "WriteKeywords", "to_b2array"]

Mode = Literal["w", "w-", "x", "a", "a-", "r+"]

_NAMELESS = "__xarray_dataarray_variable__"
_NAMED = "__xarray_dataarray_name__"
"""The names under which xarray stores a single array, and finds it again."""

_SMALL_NBYTES = 2**20
_WORTH_A_WARNING = 2**20


class _Part(NamedTuple):
    """Values for a region of an array, with its handle and its path in the outermost group."""

    path: str
    array: NDArray
    region: Region
    values: da.Array


class _Task(NamedTuple):
    """The arguments of `to_b2array`."""

    mode: Mode
    append_dim: Hashable | None
    region: Any
    compute: bool
    options: VariableKeywords


class WriteKeywords(VariableKeywords, total=False):
    """The keywords of `to_b2array`."""

    mode: Mode | None
    group: str | None
    append_dim: Hashable | None
    region: Mapping[Hashable, slice | Literal["auto"]] | Literal["auto"] | None
    encoding: Mapping[Hashable, Any] | None
    write_inherited_coords: bool
    compute: bool
    progress: bool
    scheduler: Any
    storage_options: Mapping[str, Any] | None
    fs: AbstractFileSystem | None


@takes(VariableKeywords)
def to_b2array(
    ds: xr.Dataset | xr.DataArray | xr.DataTree,
    url: Url,
    *,
    mode: Mode | None = None,
    group: str | None = None,
    append_dim: Hashable | None = None,
    region: Mapping[Hashable, slice | Literal["auto"]] | Literal["auto"] | None = None,
    encoding: Mapping[Hashable, Any] | None = None,
    write_inherited_coords: bool = False,
    compute: bool = True,
    progress: bool = False,
    scheduler: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    **options: Unpack[VariableKeywords],
) -> Any:
    """Write a dataset, a tree of them or a single array as a group of arrays, in one commit.

    Variables that are dask arrays are computed in one graph, and written in parallel. A reader who opens the group sees
    all of the commit or nothing of it: never a variable that has grown while its coordinate has not.

    Parameters
    ----------
    ds : xarray.Dataset, xarray.DataArray or xarray.DataTree
        Names of variables and dimensions must be text.
    url : str or os.PathLike
        A directory, a prefix that fsspec understands, or a local ``.b2z`` file, which is written as a whole.
    mode : {"w-", "x", "w", "a", "a-", "r+"}, optional
        "w-" or "x": make a new group. "w": replace the group with everything in it. "a": add variables to the group,
        and overwrite the values of existing ones. "a-": the same, but with `append_dim` keep variables without that
        dimension as they are. "r+": only overwrite values. The default is "a" with `append_dim`, "r+" with `region`,
        else "w-".
    group : str, optional
        A group in the one at `url`. In every mode, groups beside it stay as they are.
    append_dim : str, optional
        Append to existing variables along this dimension.
    region : mapping of str to slice, or "auto", optional
        Write into a part of existing variables. "auto", for all dimensions or for one, finds the part by the
        values of the stored coordinate. Variables that are indexes are not written.
    encoding : mapping, optional
        For each new variable, a replacement of its ``encoding``: entries of the CF conventions, and ``chunks``,
        ``blocks``, ``cparams``, ``layout`` and ``fill_value`` as `b2array.create` takes them. For a tree, such a
        mapping for each path of a node.
    write_inherited_coords : bool, default False
        For a tree: repeat the coordinates that nodes inherit in each of them.
    compute : bool, default True
        Whether to compute dask arrays now. Otherwise everything else is written, and arrays of the fill value in their
        place; the result is a `dask.delayed.Delayed` that computes and commits the rest.
    progress : bool, default False
        Show on stderr how far dask arrays have come.
    scheduler : str, callable or distributed.Client, optional
        For dask; its default otherwise.
    storage_options : mapping, optional
        For fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.
    chunks, ..., meta
        As for `b2array.create`, for all new variables.

    Returns
    -------
    None or dask.delayed.Delayed

    Raises
    ------
    FileExistsError
        There is a group already.
    FileNotFoundError
        There is no group to change.
    KeyError
        `encoding` names no variable, or a coordinate is not found for ``region="auto"``.
    ValueError
        The variables do not fit the existing ones, or the encoding. Nothing has happened then.
    TypeError
        Values or attributes cannot be stored.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from b2array.xarray_io import Backend
    >>> step = xr.Dataset({"level": (("time", "x"), np.zeros((1, 3)))}, {"time": [0]})
    >>> to_b2array(step, "memory://simulation.b2d")
    >>> to_b2array(step.assign_coords(time=[1]) + 1, "memory://simulation.b2d", append_dim="time")
    >>> ds = xr.open_dataset("memory://simulation.b2d", engine=Backend)
    >>> ds.time.values.tolist(), ds.level.sel(time=1).values.tolist()
    ([0, 1], [1.0, 1.0, 1.0])
    """
    if not isinstance(ds, xr.Dataset | xr.DataArray | xr.DataTree):
        raise TypeError(
            f"expected a dataset, an array or a tree of xarray, found {type(ds).__name__}; "
            "b2array.asarray(values, url=...) stores other arrays"
        )
    url, storage_options = address_of(url, storage_options, fs)
    task = _Task(_checked_mode(mode, append_dim, region), append_dim, region, compute, options)
    if not compute and is_place(os.fspath(url), storage_options or {}):
        raise ValueError(
            "compute=False writes into a group later, and a .b2z file is packed now: write to a directory, such as"
            " name.b2d, and at last b2array.convert('name.b2d', 'name.b2z')"
        )
    nodes = _nodes(ds, encoding or {}, inherit=write_inherited_coords)
    if isinstance(ds, xr.DataTree) and (append_dim is not None or region is not None):
        raise TypeError("append_dim and region are for datasets, not for trees")
    if task.mode in ("w", "x"):
        # Check this before anything is touched.
        new = [(path, *_encoded(node, asked)) for path, node, asked in nodes]
    with _transaction(url, task.mode, (group or "").strip("/"), storage_options) as target:
        parts: list[_Part] = []
        if task.mode in ("w", "x"):
            for path, variables, attrs in new:
                parts += _created(_inner(target, path), variables, attrs, task)
        else:
            for path, node, asked in nodes:
                inner = _inner(target, path, make=task.mode != "r+")
                parts += _changed(inner, node, asked, task)
        if compute and parts:
            dask.join([(part.array, part.values, part.region) for part in _aligned(parts)], progress, scheduler)
    return None if compute else _later(parts, os.fspath(url), storage_options or {})


KEYWORDS: Final = {
    name: each.default for name, each in inspect.signature(to_b2array).parameters.items() if name not in ("ds", "url")
}
"""The same with what they are if they are left out."""


# What is asked for.


def _checked_mode(mode: Mode | None, append_dim: Hashable | None, region: object) -> Mode:
    if mode is None:
        mode = "a" if append_dim is not None else "r+" if region is not None else "w-"
    if mode not in ("w", "w-", "x", "a", "a-", "r+"):
        raise ValueError(f"mode must be 'w', 'w-', 'x', 'a', 'a-' or 'r+', not {mode!r}")
    if append_dim is not None and mode not in ("a", "a-"):
        raise ValueError(f"cannot set append_dim unless mode='a', mode='a-' or mode=None, found {mode!r}")
    if region is not None and mode not in ("a", "a-", "r+"):
        raise ValueError(f"cannot set region unless mode='a', mode='a-', mode='r+' or mode=None, found {mode!r}")
    if isinstance(region, Mapping) and append_dim is not None and isinstance(region.get(append_dim), slice):
        raise ValueError(f"cannot list the same dimension in both append_dim and region: {append_dim!r}")
    return "x" if mode == "w-" else mode


def _nodes(
    ds: xr.Dataset | xr.DataArray | xr.DataTree, encoding: Mapping[Hashable, Any], *, inherit: bool
) -> list[tuple[str, xr.Dataset, Mapping[Hashable, Any]]]:  # fmt: skip
    """Return datasets with their paths below the group, and their encodings."""
    if isinstance(ds, xr.DataTree):
        paths = [node.path for node in ds.subtree]
        if unknown := [path for path in encoding if path not in paths]:
            raise ValueError(f"unexpected encoding group names: {unknown} are not paths of nodes")
        return [
            (
                node.path[len(ds.path) :].strip("/"),
                node.to_dataset(inherit=inherit or node is ds),
                encoding.get(node.path, {}),
            )
            for node in ds.subtree
        ]
    if isinstance(ds, xr.DataArray):
        if ds.name is None or ds.name in ds.coords or ds.name in ds.dims:
            named = {} if ds.name is None else {_NAMED: ds.name}
            return [("", ds.to_dataset(name=_NAMELESS).assign_attrs(named), encoding)]
        return [("", ds.to_dataset(), encoding)]
    return [("", ds, encoding)]


def _encoded(ds: xr.Dataset, encoding: Mapping[Hashable, Any]) -> tuple[dict[str, xr.Variable], dict[str, Any]]:
    variables, attrs = marked(ds)
    return encoded(variables, encoding), attributes(attrs, "the dataset")


# Where it goes.


@contextmanager
def _transaction(
    url: Url, mode: Mode, name: str, storage_options: Mapping[str, Any] | None
) -> Iterator[Group]:  # fmt: skip
    """Open a group in a transaction, with its old contents even if they are to be replaced: the commit does that."""
    home, made = _home(url, "a" if name and mode in ("w", "x") else mode, storage_options)
    try:
        inner = _found(home, name, mode) if name else home
        with (home if inner is None else inner).transaction(replace=mode == "w" and inner is not None) as changes:
            yield changes.create_group(name) if inner is None else changes
    except BaseException:
        there = home._writable()
        if isinstance(there, Unpacked):
            there.discard()
        elif made:
            whole.discard(cast(Directory, there))
        raise
    if isinstance(home._writable(), Unpacked):
        home.close()


def _found(home: Group, name: str, mode: Mode) -> Group | None:
    """Return the group of that name, or None if it is to be made."""
    inner = home.get(name)
    if inner is not None and not isinstance(inner, Group):
        raise TypeError(f"{name!r} in {home.url} is an array, and no group")
    if inner is None and mode == "r+":
        raise FileNotFoundError(f"{home.url}: there is no group {name!r}")
    if inner is not None and mode == "x":
        raise FileExistsError(f"{home.url}: there is a group {name!r}")
    return inner


def _home(url: Url, mode: Mode, storage_options: Mapping[str, Any] | None) -> tuple[Group, bool]:
    """Open the group, or make it; also say whether it was made."""
    if is_place(os.fspath(url), storage_options or {}):  # a new archive has no use for the old members
        return group.open_group(url, "a" if mode == "a-" else mode, storage_options=storage_options), False
    if mode != "x":
        try:
            home = group.open_group(url, "r+", storage_options=storage_options)
        except FileNotFoundError:
            if mode == "r+":
                raise
        else:
            there = cast(Directory, home._writable())
            if mode == "w":
                whole.check_replaceable(there)
            if mode != "r+":
                whole.complete(there)
            return home, False
    opened: Any = "a" if mode == "a-" else mode
    return group.open_group(url, opened, storage_options=storage_options), True


def _inner(target: Group, path: str, *, make: bool = True) -> Group:
    if not path:
        return target
    if make:
        return target.create_group(path)
    found = target.get(path)
    if not isinstance(found, Group):
        raise FileNotFoundError(f"{target.url}: there is no group {path!r}")
    return found


# Writing.


def _created(
    target: Group, variables: Mapping[str, xr.Variable], attrs: Mapping[str, Any], task: _Task
) -> Iterator[_Part]:  # fmt: skip
    """Make new variables and attributes; yield the parts that dask has to compute."""
    _note(target, attrs)
    for name, variable in variables.items():
        options = {**task.options, **variable.encoding, "dims": variable.dims, "attrs": variable.attrs}
        _keep_missing(options)
        if not is_dask(variable) or not variable.size:
            target.create(name, data=variable.values, **options)
            continue
        options.setdefault("chunks", _chunks(variable))
        if not task.compute and variable.attrs.get("_FillValue") is not None:
            options.setdefault("fill_value", variable.attrs["_FillValue"])
        array = target.create(name, variable.shape, variable.dtype, **options)
        whole = tuple(slice(0, n) for n in variable.shape)
        yield _Part(f"{target.name}/{name}".lstrip("/"), array, whole, variable.data)


def _keep_missing(options: dict[str, Any]) -> None:
    """Let the value that marks missing items be the fill value, which is never rounded."""
    missing, cparams = options["attrs"].get("_FillValue"), given_or_default(options.get("cparams"))
    if missing is not None and cparams.is_zfp and missing == missing:  # noqa: PLR0124 - NaN differs from itself
        raise UnsupportedError(f"ZFP would change items equal to {missing}, which mark missing ones; NaN stays NaN")
    if missing is not None and cparams.is_lossy:
        options.setdefault("fill_value", missing)


def _chunks(variable: xr.Variable) -> Any:
    """Choose stored chunks that divide those of dask, or small ones that are the same."""
    cut = variable.chunks or ()
    if (chosen := dask_chunks.dividing(cut, variable.dtype.itemsize)) is not None:
        return chosen
    regular = all(len({*lengths[:-1]}) <= 1 and lengths[-1] <= lengths[0] for lengths in cut)
    first = tuple(lengths[0] for lengths in cut)
    return first if regular and math.prod(first) * variable.dtype.itemsize <= _SMALL_NBYTES else "auto"


def _note(target: Group, attrs: Mapping[str, Any]) -> None:
    for name, value in attrs.items():
        known: Any = target.attrs.get(name)
        if name == "coordinates" and isinstance(known, str):
            value = " ".join(dict.fromkeys(f"{known} {value}".split()))  # noqa: PLW2901
        if type(known) is not type(value) or not np.array_equal(known, value):
            target.attrs[name] = value


def _changed(target: Group, ds: xr.Dataset, encoding: Mapping[Hashable, Any], task: _Task) -> Iterator[_Part]:
    """Change existing variables, and add others; yield the parts that dask has to compute."""
    arrays, region = _arrays_of(target, ds, task), {}
    if task.append_dim is not None and task.append_dim not in (known := _sizes(arrays)):
        raise ValueError(f"append_dim={task.append_dim!r} does not match any existing dataset dimensions: {[*known]}")
    if task.region is not None:
        region = detected(task.region, ds, arrays)
        ds = ds.drop_vars(ds.indexes)
    variables, attrs = marked(ds)
    new = {name: variable for name, variable in variables.items() if name not in arrays}
    _check_new(target, ds, new, arrays, task)
    if twice := [name for name in encoding if name in arrays]:
        raise ValueError(f"variables {twice} already exist, but encoding was provided")
    if task.append_dim is not None:
        _check_growing(target, variables, arrays, task.append_dim)
    left = {
        name: as_stored(name, variable, arrays[name])
        for name, variable in variables.items()
        if name in arrays and (task.mode != "a-" or task.append_dim is None or task.append_dim in variable.dims)
    }
    where = {name: place(name, arrays[name], each, task.append_dim, region) for name, each in left.items()}
    if task.mode != "r+":
        yield from _created(target, encoded(new, encoding), attributes(attrs, "the dataset"), task)
    for name, variable in left.items():
        array = _widened(target, name, arrays[name], variable.dtype, task)
        stops = tuple(max(n, part.stop) for n, part in zip(array.shape, where[name], strict=True))
        grown = stops != array.shape
        if grown:
            array.resize(stops)
        if is_dask(variable) and variable.size:
            yield _Part(f"{target.name}/{name}".lstrip("/"), array, where[name], variable.data)
        elif grown or task.append_dim is None or not _holds(array[where[name]], variable.values):
            array[where[name]] = variable.values


def _arrays_of(target: Group, ds: xr.Dataset, task: _Task) -> dict[str, NDArray]:
    """Open the arrays that are directly in a group.

    Other writers may change those that are not in the dataset, and coordinates that say nothing about the region.
    """
    here = {name: each for name, each in target._glance().items() if isinstance(each, NDArray)}
    ignored = {*ds.indexes} if isinstance(task.region, Mapping) and "auto" not in task.region.values() else {}
    return {name: target[name] if name in ds.variables and name not in ignored else here[name] for name in here}


def _sizes(arrays: Mapping[str, NDArray]) -> dict[str, int]:
    return {dim: n for array in arrays.values() for dim, n in zip(array.dims or (), array.shape, strict=False) if dim}


def _holds(stored: npt.NDArray[Any], values: npt.NDArray[Any]) -> bool:
    """Whether an array holds these values already, as when each step of a simulation repeats the coordinates."""
    return np.asarray(stored).tobytes() == values.astype(stored.dtype).tobytes()


def _check_new(
    target: Group, ds: xr.Dataset, new: Mapping[str, xr.Variable], arrays: Mapping[str, NDArray], task: _Task
) -> None:  # fmt: skip
    """Refuse new variables if the mode allows none, or if their sizes do not fit the existing ones."""
    if new and task.mode == "r+":
        raise ValueError(
            f"the dataset contains non-pre-existing variables: {target.url} has no variables {sorted(new)}; mode='a' "
            "adds some"
        )
    if task.append_dim is not None and task.append_dim not in ds.dims:
        raise ValueError(f"the dataset has no dimension {task.append_dim!r}")
    sizes = _sizes(arrays)
    for name, variable in new.items():
        if task.append_dim in variable.dims:
            raise ValueError(
                f"{target.url} has no variables {[name]}, and new ones cannot have the dimension {task.append_dim!r}, "
                "along which the others grow"
            )
        for dim, n in variable.sizes.items():
            if sizes.get(str(dim), n) != n:
                raise ValueError(
                    f"{target.url} has no variables {[name]}, and new ones must have {sizes[str(dim)]} items along "
                    f"{dim!r}, not {n}"
                )


def _check_growing(
    target: Group, variables: Mapping[str, xr.Variable], arrays: Mapping[str, NDArray], dim: Hashable
) -> None:  # fmt: skip
    grow = {name for name, array in arrays.items() if dim in (array.dims or ())}
    if left := sorted(grow - variables.keys()):
        raise ValueError(f"{target.url}: variables {left} would not grow along {dim!r} with the others")


def _widened(target: Group, name: str, array: NDArray, dtype: np.dtype[Any], task: _Task) -> NDArray:
    """Widen stored text for new text, as part of the same commit."""
    if dtype.kind not in "SU" or dtype.itemsize <= array.itemsize:
        return array
    if task.mode == "r+":
        raise ValueError(
            f"variable {name!r} is stored as {array.dtype}, which cannot hold {dtype}; mode='a' makes it wider"
        )
    values = array[...].astype(dtype)
    form: dict[str, Any] = {
        "chunks": array.chunks, "cparams": readable(array.cparams), "dims": array.dims, "attrs": dict(array.attrs),
        "layout": array.info["layout"], "fill_value": array.fill_value,
    }  # fmt: skip
    del target[name]
    return target.create(name, data=values, **form)


# What dask computes.


def _later(parts: Iterable[_Part], url: str, options: Mapping[str, Any]) -> Delayed:
    """Return a delayed that computes everything, and commits it at once to arrays that exist already."""
    home = group.open_group(url, "r+", storage_options=options)
    while (outer := home.parent) is not None:  # it was a part of this one
        home = outer
    writes, names = [], []
    for part in _aligned(parts):
        handle = home[part.path]._handle
        writes.append(
            Write(part.values, origin_of(handle.new_draft(), lasts=True), NDArray(handle)._layout, part.region)
        )
        names.append(part.path)
    name = f"b2array-commit-{uuid4().hex}"
    place = cast(Directory, home._writable()).address("")  # absolute: tasks may run in another working directory
    shared = Shared(name, (place, dict(options), names, [write.origin for write in writes]))
    return dask.final(writes, name, _commit, shared)


def _commit(put: Sequence[Any], shared: Shared[tuple[str, dict[str, Any], list[str], list[Origin]]]) -> None:
    url, options, names, origins = shared.value
    home = group.open_group(url, "r+", storage_options=options)
    with home.transaction() as changes:
        for name, origin, of_array in zip(names, origins, dask.gathered(put), strict=True):
            draft = changes[name]._handle.draft
            if draft is None:
                raise ConflictError(f"{url}: expected a transaction under way, found that it has ended")
            origin.lead_to(draft)
            merge_changes(draft, of_array, again=True)  # a cluster may repeat this task
    for origin in origins:
        origin.tidy()


def _aligned(parts: Iterable[_Part]) -> list[_Part]:
    """Rechunk arrays that do not consist of whole stored chunks, and warn once about all of them."""
    from dask.array.core import PerformanceWarning

    found, moved, nbytes = [], [], 0.0
    for part in parts:
        dask.check_source(part.values)
        starts = [along.start for along in part.region]
        cut = dask_chunks.aligned(part.values.chunks, part.array.chunks, starts)
        if cut != part.values.chunks:
            moved.append(part.path)
            nbytes += part.values.nbytes
            part = part._replace(values=part.values.rechunk(cut))  # noqa: PLW2901
        found.append(part)
    if nbytes >= _WORTH_A_WARNING:
        warn(
            f"the dask chunks of {moved} do not consist of whole stored chunks: {nbytes / 1e6:.1f} MB move between "
            "tasks",
            PerformanceWarning,
        )
    return found
