"""Changes the variables of existing datasets: appends, writes regions, and stores times in finer units."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from b2array.array.array import NDArray
from b2array.codec.interop import readable
from b2array.group.group import Group
from b2array.xarray_io.creating import create
from b2array.xarray_io.encoding import (
    OtherUnitsError,
    as_stored,
    attributes,
    encode,
    is_dask,
    is_same,
    is_time,
    mark,
)
from b2array.xarray_io.indexes import check_indexes, check_new_part, detect, place
from b2array.xarray_io.tasks import Node, WritePart, WriteTask
from b2array.xarray_io.times import UNITS, decode, find_bounds, in_units, is_unknown, with_stored_units

__all__ = ["change", "group_at"]


def group_at(target: Group, path: str, *, make: bool = True) -> Group:
    """Return a group inside another one; make it if it is missing, or raise FileNotFoundError."""
    if not path:
        return target
    if make:
        return target.create_group(path)
    node = target.get(path)
    if not isinstance(node, Group):
        raise FileNotFoundError(f"{target.url}: there is no group {path!r}")
    return node


def change(target: Group, nodes: Sequence[Node], task: WriteTask, *, is_tree: bool) -> Iterator[WritePart]:
    """Change the groups of a dataset or a tree; yield the parts that dask has to compute."""
    groups = [group_at(target, node.path, make=task.mode != "r+") for node in nodes]
    arrays = {node.path: _arrays_of(group, node.ds, task) for node, group in zip(nodes, groups, strict=True)}
    for node, group in zip(nodes, groups, strict=True):
        outer: dict[str, NDArray] = {}
        for path in _ancestors(node.path):
            outer |= arrays.get(path, {})
        own = _task_of(node, task) if is_tree else task
        if task.mode == "a-" and own.append_dim != task.append_dim:
            # Variables without the dimension stay as they are.
            node = node._replace(ds=node.ds.drop_vars(arrays[node.path], errors="ignore"))  # noqa: PLW2901
        yield from _change(group, node, arrays[node.path], outer, own)


def _ancestors(path: str) -> Iterator[str]:
    """Yield the paths of the nodes around one, the outermost first."""
    names = path.split("/") if path else []
    for depth in range(len(names)):
        yield "/".join(names[:depth])


def _task_of(node: Node, task: WriteTask) -> WriteTask:
    """Return the task for a node of a tree, which may lack dimensions that other nodes have."""
    if task.append_dim is not None and task.append_dim not in node.ds.dims:
        return task._replace(append_dim=None)
    if not isinstance(task.region, Mapping):
        return task
    region = {dim: part for dim, part in task.region.items() if dim in node.ds.dims}
    if task.region and not region and (names := [*node.ds.drop_vars(node.ds.indexes).variables]):
        raise ValueError(
            f"{node.path or '/'}: variables {names} have no dimension of the region {[*task.region]}: drop them, or "
            "write them whole"
        )
    return task._replace(region=region)


def _change(
    target: Group,
    node: Node,
    arrays: dict[str, NDArray],
    outer: Mapping[str, NDArray],
    task: WriteTask,
) -> Iterator[WritePart]:
    """Change existing variables, and add others; yield the parts that dask has to compute.

    `arrays` are the existing ones, `outer` the arrays of the groups around this one.
    """
    region = _check_region(node, arrays, outer, task)
    ds = node.ds if task.region is None else node.ds.drop_vars(node.ds.indexes)
    variables, attrs = mark(ds)
    variables = with_stored_units(variables, arrays)
    new = {name: variable for name, variable in variables.items() if name not in arrays}
    _check_new(target, ds, new, arrays, task)
    if task.append_dim is not None:
        _check_growing(target, variables, arrays, task.append_dim)
    left = {
        name: variable
        for name, variable in variables.items()
        if name in arrays and (task.mode != "a-" or task.append_dim is None or task.append_dim in variable.dims)
    }
    for name, asked in node.encoding.items():
        if name in arrays:
            _give_units(target, str(name), variables.get(str(name)), asked, arrays, task)
    left = _all_as_stored(left, arrays, task)
    where = {name: place(name, arrays[name], each, task.append_dim, region) for name, each in left.items()}
    if task.mode != "r+":
        asked = {name: each for name, each in node.encoding.items() if name not in arrays}
        coordinates = {str(name) for name in ds.coords} & new.keys()
        attrs = _with_coordinates(attributes(attrs, "the dataset"), coordinates - {*map(str, ds.dims)})
        yield from create(target, encode(new, asked, task.options), attrs, task)
    for name, variable in left.items():
        array = _widen(target, name, arrays[name], variable.dtype, task)
        yield from _put(target, name, array, variable, where[name], task)


def _check_region(
    node: Node,
    arrays: Mapping[str, NDArray],
    outer: Mapping[str, NDArray],
    task: WriteTask,
) -> dict[Hashable, slice]:
    """Return the region of a dataset, after a look whether its indexes agree with the stored ones."""
    dim = task.append_dim
    if dim is not None and dim not in (sizes := _sizes(arrays)):
        raise ValueError(f"append_dim={dim!r} does not match any existing dataset dimensions: {[*sizes]}")
    region = {} if task.region is None else detect(task.region, node.ds, node.whole, {**outer, **arrays})
    if task.check_index != "off":
        check_indexes(node.ds, arrays, region if task.region is not None else None, dim)
    if dim is not None:
        check_new_part(dim, node.ds, arrays, task.check_index)
    return region


def _put(
    target: Group,
    name: str,
    array: NDArray,
    variable: xr.Variable,
    where: tuple[slice, ...],
    task: WriteTask,
) -> Iterator[WritePart]:
    """Write values into their place; yield the parts that dask has to compute."""
    stops = tuple(max(n, part.stop) for n, part in zip(array.shape, where, strict=True))
    grown = stops != array.shape
    if grown:
        array.resize(stops)
    if is_dask(variable) and variable.size:
        yield WritePart(f"{target.name}/{name}".lstrip("/"), array, where, variable.data)
    elif grown or task.append_dim is None or not _holds(array[where], variable.values):
        array[where] = variable.values


def _with_coordinates(attrs: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Note in the attributes of a group which new variables are coordinates: variables that exist keep theirs."""
    names = sorted(name for name in names if " " not in name)
    if not names:
        return attrs
    noted = [*str(attrs.get("coordinates", "")).split(), *names]
    return {**attrs, "coordinates": " ".join(dict.fromkeys(noted))}


# Units of times that are stored.


def _give_units(
    target: Group,
    name: str,
    variable: xr.Variable | None,
    asked: Any,
    arrays: dict[str, NDArray],
    task: WriteTask,
) -> None:
    """Store times that exist in other units, as the user asks."""
    if variable is None:
        raise KeyError(f"encoding is given for {name!r}, which is no variable")
    array = arrays[name]
    others = [key for key in asked if key not in (*UNITS, "dtype")]
    if others or "units" not in asked or "units" not in array.attrs or not is_time(variable):
        raise ValueError(
            f"variables {[name]} already exist, but encoding was provided: of what is stored, only times can get others"
            " units and another dtype"
        )
    is_typed = "dtype" not in asked or np.dtype(asked["dtype"]) == array.dtype
    if is_typed and is_same(asked["units"], array.attrs["units"]):
        return
    if task.mode == "r+":
        raise ValueError(f"variable {name!r}: mode='r+' only overwrites values; mode='a' also changes units")
    _change_units(target, name, asked, arrays)


def _change_units(
    target: Group,
    name: str,
    asked: Mapping[Hashable, Any],
    arrays: dict[str, NDArray],
) -> None:
    """Store times again in other units, and the bounds that share them."""
    owners = find_bounds(arrays)
    calendar = arrays[name].attrs.get("calendar")
    asked = {**({} if calendar is None else {"calendar": calendar}), "dtype": arrays[name].dtype, **asked}
    times = in_units(name, decode(name, arrays[name]), asked)
    arrays[name] = _replace(target, name, arrays[name], times)
    for bounds, (owner, units) in owners.items():
        if owner == name and "units" not in arrays[bounds].attrs:
            edges = in_units(bounds, decode(bounds, arrays[bounds], units), asked)
            edges.attrs = {key: value for key, value in edges.attrs.items() if key not in UNITS}
            arrays[bounds] = _replace(target, bounds, arrays[bounds], edges)


def _replace(target: Group, name: str, array: NDArray, variable: xr.Variable) -> NDArray:
    """Replace a stored array; keep its attributes, except the ones that say what values mean."""
    kept = {key: value for key, value in array.attrs.items() if key not in (*UNITS, "dtype", "_FillValue")}
    form = _form(array)
    if variable.dtype != array.dtype:
        del form["fill_value"]
    del target[name]
    return target.create(name, data=variable.values, **{**form, "attrs": {**kept, **variable.attrs}})


def _form(array: NDArray) -> dict[str, Any]:
    return {
        "chunks": array.chunks,
        "cparams": readable(array.cparams),
        "dims": array.dims,
        "attrs": dict(array.attrs),
        "layout": array.info["layout"],
        "fill_value": array.fill_value,
    }


def _all_as_stored(
    variables: Mapping[str, xr.Variable],
    arrays: dict[str, NDArray],
    task: WriteTask,
) -> dict[str, xr.Variable]:
    """Encode variables as the existing ones are encoded. Stored times of which nothing is known yet get other units."""
    result: dict[str, xr.Variable] = {}
    owners = find_bounds(arrays)
    for name in sorted(variables, key=lambda name: name in owners):  # bounds need the units of their coordinate
        owner, units = find_bounds(arrays).get(name, (name, {}))
        try:
            result[name] = as_stored(name, variables[name], arrays[name], units)
        except OtherUnitsError as error:
            if task.mode == "r+" or owner != name or not _are_free(name, arrays):
                mode = ", mode='a'" if task.mode == "r+" else ""
                raise ValueError(
                    f"{error}; encoding={{{owner!r}: {{'units': {error.units!r}}}}}{mode} stores all of them in these"
                ) from None
            arrays[name].attrs["units"] = error.units
            result[name] = as_stored(name, variables[name], arrays[name])
    return {name: result[name] for name in variables}


def _are_free(name: str, arrays: Mapping[str, NDArray]) -> bool:
    """Whether an array has no time yet, nor have the bounds that share its units: nothing depends on these."""
    sharing = {bounds: units for bounds, (owner, units) in find_bounds(arrays).items() if owner == name}
    every = {name: MappingProxyType[str, Any]({}), **sharing}
    return all(is_unknown(decode(each, arrays[each], units)) for each, units in every.items())


# What must fit.


def _arrays_of(target: Group, ds: xr.Dataset, task: WriteTask) -> dict[str, NDArray]:
    """Open the arrays that are directly in a group.

    Other writers may change variables that are not in the dataset, and coordinates that say nothing about the region.
    """
    here = {name: each for name, each in target._arrays_to_read().items() if isinstance(each, NDArray)}
    ignored = {*ds.indexes} if isinstance(task.region, Mapping) and "auto" not in task.region.values() else {}
    return {name: target[name] if name in ds.variables and name not in ignored else here[name] for name in here}


def _sizes(arrays: Mapping[str, NDArray]) -> dict[str, int]:
    return {dim: n for array in arrays.values() for dim, n in zip(array.dims or (), array.shape, strict=False) if dim}


def _holds(stored: npt.NDArray[Any], values: npt.NDArray[Any]) -> bool:
    """Whether an array holds these values already, as when each step of a simulation repeats the coordinates."""
    return np.asarray(stored).tobytes() == values.astype(stored.dtype).tobytes()


def _check_new(
    target: Group,
    ds: xr.Dataset,
    new: Mapping[str, xr.Variable],
    arrays: Mapping[str, NDArray],
    task: WriteTask,
) -> None:
    """Refuse new variables if the mode forbids them, or if their sizes do not fit the existing ones."""
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
    target: Group,
    variables: Mapping[str, xr.Variable],
    arrays: Mapping[str, NDArray],
    dim: Hashable,
) -> None:
    grow = {name for name, array in arrays.items() if dim in (array.dims or ())}
    if left := sorted(grow - variables.keys()):
        raise ValueError(f"{target.url}: variables {left} would not grow along {dim!r} with the others")


def _widen(target: Group, name: str, array: NDArray, dtype: np.dtype[Any], task: WriteTask) -> NDArray:
    """Widen stored text for new text, as part of the same commit."""
    if dtype.kind not in "SU" or dtype.itemsize <= array.itemsize:
        return array
    if task.mode == "r+":
        raise ValueError(
            f"variable {name!r} is stored as {array.dtype}, which cannot hold {dtype}; mode='a' makes it wider"
        )
    values, form = array[...].astype(dtype), _form(array)
    del target[name]
    return target.create(name, data=values, **form)
