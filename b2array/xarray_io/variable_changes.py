"""Changes the variables of existing datasets: appends, writes regions, and stores times in finer units."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from b2array.array.array import NDArray
from b2array.codec.interop import readable
from b2array.errors import warn
from b2array.group.group import Group
from b2array.xarray_io.backend import attributes_of
from b2array.xarray_io.creating import create
from b2array.xarray_io.encoding import (
    CODED,
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
from b2array.xarray_io.time_units import UNITS, decode, find_bounds, in_units, is_unknown, with_stored_units

__all__ = ["change", "group_at"]


def group_at(target: Group, path: str, *, make: bool = True) -> Group:
    """Return a group inside another one. With `make`, make a missing group; otherwise raise FileNotFoundError."""
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
    arrays_by_path = {}
    for node, group in zip(nodes, groups, strict=True):
        arrays_by_path[node.path] = _open_arrays(group, node.ds, task)
    for node, group in zip(nodes, groups, strict=True):
        arrays = arrays_by_path[node.path]
        outer: dict[str, NDArray] = {}
        for path in _ancestors(node.path):
            outer |= arrays_by_path.get(path, {})
        own_task = _narrow(task, node) if is_tree else task
        if task.mode == "a-" and own_task.append_dim != task.append_dim:
            # Variables without the dimension stay as they are.
            without_existing = node.ds.drop_vars(arrays, errors="ignore")
            node = node._replace(ds=without_existing)  # noqa: PLW2901
        yield from _change(group, node, arrays, outer, own_task)


def _ancestors(path: str) -> Iterator[str]:
    """Yield the paths of the ancestors of a node, the outermost first."""
    names = path.split("/") if path else []
    for depth in range(len(names)):
        yield "/".join(names[:depth])


def _narrow(task: WriteTask, node: Node) -> WriteTask:
    """Return the task for a node of a tree, which may lack dimensions that other nodes have."""
    if task.append_dim is not None and task.append_dim not in node.ds.dims:
        return task._replace(append_dim=None)
    if not isinstance(task.region, Mapping):
        return task
    region = {dim: part for dim, part in task.region.items() if dim in node.ds.dims}
    if task.region and not region:
        # Indexes are not written into a region, so the dataset may contain them.
        names = [*node.ds.drop_vars(node.ds.indexes).variables]
        if names:
            raise ValueError(
                f"{node.path or '/'}: variables {names} have no dimension of the region {[*task.region]}: drop them, or"
                " write them whole"
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
    existing = {}
    for name, variable in variables.items():
        stays_as_it_is = task.mode == "a-" and task.append_dim is not None and task.append_dim not in variable.dims
        if name in arrays and not stays_as_it_is:
            existing[name] = variable
    for key, asked in node.encoding.items():
        if key in arrays:
            name = str(key)
            _change_units_as_asked(target, name, variables.get(name), asked, arrays, task)
    for name, variable in existing.items():
        _take_attributes(name, variable, arrays[name], task)
    existing = _encode_as_stored(existing, arrays, task)
    # Find all places first, so that a variable that does not fit is refused before any values are written.
    places = {}
    for name, variable in existing.items():
        places[name] = place(name, arrays[name], variable, task.append_dim, region)
    if task.mode != "r+":
        encoding = {name: asked for name, asked in node.encoding.items() if name not in arrays}
        new_coordinates = {str(name) for name in ds.coords} & new.keys()
        # A coordinate with the name of a dimension needs no note: xarray knows it by its name.
        noted = new_coordinates - {*map(str, ds.dims)}
        attrs = _note_coordinates(attributes(attrs, "the dataset"), noted)
        yield from create(target, encode(new, encoding, task.options), attrs, task)
    for name, variable in existing.items():
        array = _widen(target, name, arrays[name], variable.dtype, task)
        yield from _put(target, name, array, variable, places[name], task)


def _check_region(
    node: Node,
    arrays: Mapping[str, NDArray],
    outer: Mapping[str, NDArray],
    task: WriteTask,
) -> dict[Hashable, slice]:
    """Return the region of a dataset; ValueError says that its indexes differ from the stored ones."""
    dim = task.append_dim
    if dim is not None:
        sizes = _measure_dims(arrays)
        if dim not in sizes:
            raise ValueError(f"append_dim={dim!r} does not match any existing dataset dimensions: {[*sizes]}")
    has_region = task.region is not None
    region = {}
    if task.region is not None:
        # Coordinates of a group are known in the groups inside it.
        region = detect(task.region, node.ds, node.whole, {**outer, **arrays})
    if task.check_index != "off":
        check_indexes(node.ds, arrays, region if has_region else None, dim)
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
    """Write values to their places; yield the parts that dask has to compute."""
    new_shape = tuple(max(extent, part.stop) for extent, part in zip(array.shape, where, strict=True))
    grows = new_shape != array.shape
    if grows:
        array.resize(new_shape)
    if is_dask(variable) and variable.size:
        path = f"{target.name}/{name}".lstrip("/")
        yield WritePart(path, array, where, variable.data)
    elif grows or task.append_dim is None or not _is_unchanged(array[where], variable.values):
        array[where] = variable.values


def _take_attributes(
    name: str,
    variable: xr.Variable,
    array: NDArray,
    task: WriteTask,
) -> None:
    """Compare the attributes of new values with the stored ones, which stay; new values of all items set the units.

    ValueError: a part is in other units. Other differences raise a warning.
    """
    stored = attributes_of(array.attrs)
    given = attributes(variable.attrs, f"variable {name!r}")
    # Encodings and names of coordinates depend on the whole dataset; the units of times are compared with the encoding.
    ignored = {*CODED, "dtype", "coordinates"} - {"units"}
    are_times = " since " in str(stored.get("units"))
    if are_times or is_time(variable):
        ignored.add("units")
    compared = {key: value for key, value in given.items() if key not in ignored}
    other = {key: value for key, value in compared.items() if not is_same(stored.get(key), value)}
    has_place = task.append_dim is not None or task.region is not None
    is_part = has_place or task.mode == "r+"
    if not is_part and "units" in other:
        # All values are in these units now. Other attributes stay, as they do when xarray writes to Zarr.
        array.attrs["units"] = other.pop("units")
    if "units" in other and "units" in stored:
        old = stored["units"]
        new = other["units"]
        raise ValueError(
            f"variable {name!r} is stored in units of {old!r}, the new part is in {new!r}: "
            "convert the new part, or correct its attribute 'units'"
        )
    if other:
        new = "the new part has" if is_part else "the new values have"
        warn(f"variable {name!r}: the stored attributes stay as they are; {new} {other}")


def _note_coordinates(attrs: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Note in the attributes of a group which new variables are coordinates; keep the notes on existing ones."""
    # The note separates names by spaces (CF conventions, section 5).
    names = sorted(name for name in names if " " not in name)
    if not names:
        return attrs
    noted = [*str(attrs.get("coordinates", "")).split(), *names]
    without_duplicates = dict.fromkeys(noted)
    return {**attrs, "coordinates": " ".join(without_duplicates)}


# Units of times that are stored.


def _change_units_as_asked(
    target: Group,
    name: str,
    variable: xr.Variable | None,
    asked: Any,
    arrays: dict[str, NDArray],
    task: WriteTask,
) -> None:
    """Store existing times again, in the units that the encoding requests."""
    if variable is None:
        raise KeyError(f"encoding names {name!r}, which is not a variable of the dataset")
    array = arrays[name]
    others = [key for key in asked if key not in (*UNITS, "dtype")]
    if others or "units" not in asked or "units" not in array.attrs or not is_time(variable):
        raise ValueError(
            f"variables {[name]} already exist, but encoding was provided: only stored times can get other units and"
            " another dtype"
        )
    keeps_dtype = "dtype" not in asked or np.dtype(asked["dtype"]) == array.dtype
    if keeps_dtype and is_same(asked["units"], array.attrs["units"]):
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
    """Store times again in other units, and the bounds that share these units."""
    # Read the bounds before the units change: their numbers are in the old units.
    owners = find_bounds(arrays)
    array = arrays[name]
    encoding: dict[Hashable, Any] = {"dtype": array.dtype}
    if array.attrs.get("calendar") is not None:
        encoding["calendar"] = array.attrs["calendar"]
    encoding |= asked
    times = in_units(name, decode(name, array), encoding)
    arrays[name] = _replace(target, name, array, times)
    for bounds, (owner, units) in owners.items():
        array = arrays[bounds]
        if owner == name and "units" not in array.attrs:
            edges = in_units(bounds, decode(bounds, array, units), encoding)
            # Bounds store no units, but share the units of their coordinate.
            edges.attrs = {key: value for key, value in edges.attrs.items() if key not in UNITS}
            arrays[bounds] = _replace(target, bounds, array, edges)


def _replace(target: Group, name: str, array: NDArray, variable: xr.Variable) -> NDArray:
    """Replace a stored array; keep its attributes, except those that define the meaning of the values."""
    attrs = {key: value for key, value in array.attrs.items() if key not in (*UNITS, "dtype", "_FillValue")}
    options = _list_options(array)
    options["attrs"] = {**attrs, **variable.attrs}
    if variable.dtype != array.dtype:
        # The fill value is an item of the old type.
        del options["fill_value"]
    del target[name]
    return target.create(name, data=variable.values, **options)


def _list_options(array: NDArray) -> dict[str, Any]:
    """Return the options for creating an array like this one."""
    return {
        "chunks": array.chunks,
        "cparams": readable(array.cparams),
        "dims": array.dims,
        "attrs": dict(array.attrs),
        "layout": array.info["layout"],
        "fill_value": array.fill_value,
    }


def _encode_as_stored(
    variables: Mapping[str, xr.Variable],
    arrays: dict[str, NDArray],
    task: WriteTask,
) -> dict[str, xr.Variable]:
    """Encode variables like the existing ones. If no stored item is a time yet, the units may change."""
    result: dict[str, xr.Variable] = {}
    owners = find_bounds(arrays)
    # Bounds come last: they need the units of their coordinate, which may change before.
    for name in sorted(variables, key=lambda name: name in owners):
        owner, units = find_bounds(arrays).get(name, (name, {}))
        try:
            result[name] = as_stored(name, variables[name], arrays[name], units)
        except OtherUnitsError as error:
            if task.mode == "r+" or owner != name or not _may_change_units(name, arrays):
                mode = ", mode='a'" if task.mode == "r+" else ""
                raise ValueError(
                    f"{error}; encoding={{{owner!r}: {{'units': {error.units!r}}}}}{mode} stores all times in these"
                    " units"
                ) from None
            arrays[name].attrs["units"] = error.units
            result[name] = as_stored(name, variables[name], arrays[name])
    return {name: result[name] for name in variables}


def _may_change_units(name: str, arrays: Mapping[str, NDArray]) -> bool:
    """Return whether the units of an array may change: neither the array nor its bounds contain a time yet."""
    if not is_unknown(decode(name, arrays[name])):
        return False
    for bounds, (owner, units) in find_bounds(arrays).items():
        if owner == name and not is_unknown(decode(bounds, arrays[bounds], units)):
            return False
    return True


# Checks.


def _open_arrays(target: Group, ds: xr.Dataset, task: WriteTask) -> dict[str, NDArray]:
    """Open the arrays directly in a group.

    Other writers may change variables that are not in the dataset, and coordinates that do not affect the region.
    """
    has_given_region = isinstance(task.region, Mapping) and "auto" not in task.region.values()
    unneeded = {*ds.indexes} if has_given_region else set()
    arrays = {}
    for name, member in target._arrays_to_read().items():
        if isinstance(member, NDArray):
            # Arrays opened through the transaction count as read: the commit fails if other writers have changed them.
            is_part = name in ds.variables and name not in unneeded
            arrays[name] = target[name] if is_part else member
    return arrays


def _measure_dims(arrays: Mapping[str, NDArray]) -> dict[str, int]:
    """Return the extent of each dimension."""
    sizes: dict[str, int] = {}
    for array in arrays.values():
        if array.dims is not None:
            sizes |= {dim: extent for dim, extent in zip(array.dims, array.shape, strict=False) if dim}
    return sizes


def _is_unchanged(stored: npt.NDArray[Any], values: npt.NDArray[Any]) -> bool:
    """Return whether an array has these values already, as when each step of a simulation repeats the coordinates."""
    if stored.dtype.kind == "T":
        items = stored.tolist()
        return bool(items == values.tolist())
    # Compare bytes, because NaN differs from itself.
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
            "adds them"
        )
    if task.append_dim is not None and task.append_dim not in ds.dims:
        raise ValueError(f"the dataset has no dimension {task.append_dim!r}")
    sizes = _measure_dims(arrays)
    for name, variable in new.items():
        if task.append_dim in variable.dims:
            raise ValueError(
                f"{target.url} has no variables {[name]}, and new ones cannot have the dimension {task.append_dim!r}, "
                "along which the others grow"
            )
        for dim, extent in variable.sizes.items():
            stored_extent = sizes.get(str(dim), extent)
            if stored_extent != extent:
                raise ValueError(
                    f"{target.url} has no variables {[name]}, and new ones must have {stored_extent} items along "
                    f"{dim!r}, not {extent}"
                )


def _check_growing(
    target: Group,
    variables: Mapping[str, xr.Variable],
    arrays: Mapping[str, NDArray],
    dim: Hashable,
) -> None:
    """Refuse to append a part of the variables that have the dimension."""
    growing = {name for name, array in arrays.items() if dim in (array.dims or ())}
    missing = sorted(growing - variables.keys())
    if missing:
        raise ValueError(f"{target.url}: variables {missing} would not grow along {dim!r} with the others")


def _widen(target: Group, name: str, array: NDArray, dtype: np.dtype[Any], task: WriteTask) -> NDArray:
    """Widen stored text for new text, as part of the same commit."""
    if dtype.kind not in "SU" or dtype.itemsize <= array.itemsize:
        return array
    if task.mode == "r+":
        raise ValueError(
            f"variable {name!r} is stored as {array.dtype}, which cannot hold {dtype}; mode='a' makes it wider"
        )
    # Read everything before the array is deleted.
    values = array[...].astype(dtype)
    options = _list_options(array)
    del target[name]
    return target.create(name, data=values, **options)
