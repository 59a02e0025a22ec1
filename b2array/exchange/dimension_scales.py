"""Names of dimensions in HDF5 and netCDF files: datasets that are scales of the dimensions of others.

Sources: "HDF5 Dimension Scale Specification", and "NetCDF-4 Format" in the appendix of the NetCDF User's Guide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["HIDDEN", "NOT_A_COORDINATE", "attach", "is_only_a_length", "names_of"]

HIDDEN = frozenset(
    {
        "CLASS",
        "DIMENSION_LABELS",
        "DIMENSION_LIST",
        "NAME",
        "REFERENCE_LIST",
        "_NCProperties",
        "_Netcdf4Coordinates",
        "_Netcdf4Dimid",
        "_nc3_strict",
    }
)
"""Attributes that describe dimensions, or the file."""

NOT_A_COORDINATE = "_nc4_non_coord_"
"""Begins the name of a netCDF variable that has the name of a dimension, and is not its coordinate."""

_ONLY_A_LENGTH = "This is a netCDF dimension but not a netCDF variable"
_NUMBER, _NUMBERS = "_Netcdf4Dimid", "_Netcdf4Coordinates"


def is_only_a_length(data: Any) -> bool:
    """Say whether a dataset only gives a dimension of netCDF its length."""
    return _ONLY_A_LENGTH in str(data.attrs.get("NAME"))


def names_of(h5py: ModuleType, data: Any) -> tuple[str | None, ...]:
    """Return the names of a dataset's dimensions, as netCDF finds them; where it finds none, their labels."""
    names = [_last(dim[0].name) if len(dim) else None for dim in data.dims]
    if data.is_scale and data.ndim and not any(names):
        names = _names_of_scale(h5py, data)
    labels = [str(dim.label) or None for dim in data.dims]
    return tuple(name or label for name, label in zip(names, labels, strict=True))


def _names_of_scale(h5py: ModuleType, data: Any) -> list[str | None]:
    """Name the dimensions of a dataset that is the scale of its first one. netCDF numbers several dimensions."""
    names: list[str | None] = [_last(data.name), *[None] * (data.ndim - 1)]
    numbers = np.atleast_1d(data.attrs.get(_NUMBERS, ())).tolist()
    if len(numbers) != data.ndim or data.ndim == 1:
        return names
    by_number: dict[int, str] = {}
    group = data.parent
    while True:
        for node in (group[key] for key in group if isinstance(group.get(key, getlink=True), h5py.HardLink)):
            if isinstance(node, h5py.Dataset) and _NUMBER in node.attrs:
                by_number.setdefault(int(node.attrs[_NUMBER]), _last(node.name))
        if group.name == "/":
            return [by_number.get(number) for number in numbers]
        group = group.parent


def _last(path: object) -> str:
    return str(path or "").rpartition("/")[2]


def attach(h5py: ModuleType, file: Any, written: Mapping[str, Sequence[str | None]]) -> None:
    """Give new datasets dimensions with these names, by scales that netCDF and xarray find.

    A dataset with the name of its only dimension becomes the scale of it. A dimension without such a dataset, in the
    same group or an outer one, gets a dataset without items that tells its length.
    """
    for path, names in written.items():
        if tuple(names) == (_last(path),):
            file[path].make_scale(_last(path))
    for path, names in _rename(file, written).items():
        data = file[path]
        for dim, length, name in zip(data.dims, data.shape, names, strict=True):
            if name is None or tuple(names) == (_last(path),):
                continue
            scale = _scale(h5py, data.parent, name, length)
            if scale is None:
                dim.label = name
            else:
                dim.attach_scale(scale)


def _rename(file: Any, written: Mapping[str, Sequence[str | None]]) -> dict[str, Sequence[str | None]]:
    """Rename datasets that have the name of a dimension but are not a coordinate, as netCDF does."""
    used = {(path.rpartition("/")[0], name) for path, names in written.items() for name in names}
    by_path = {}
    for path, names in written.items():
        outer, slash, last = path.rpartition("/")
        if (outer, last) in used and tuple(names) != (last,):
            place = f"{outer}{slash}{NOT_A_COORDINATE}{last}"
            if place not in file:
                file.move(path, place)
                path = place  # noqa: PLW2901
        by_path[path] = names
    return by_path


def _scale(h5py: ModuleType, group: Any, name: str, length: int) -> Any:
    """Return the scale of a dimension, in a group or in those around it; None if no scale can have the name."""
    if name in ("", ".") or "/" in name:
        return None
    around = group
    while True:
        node = around[name] if isinstance(around.get(name, getlink=True), h5py.HardLink) else None
        if isinstance(node, h5py.Dataset) and node.is_scale and node.shape[:1] == (length,):
            return node
        if around.name == "/":
            break
        around = around.parent
    if name in group:
        return None
    scale = group.create_dataset(name, (length,), ">f4")  # nothing is stored of it
    scale.make_scale(f"{_ONLY_A_LENGTH}.{length:10d}")
    return scale
