"""Names of dimensions in HDF5 and netCDF files, where some datasets are scales of the dimensions of other datasets.

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
"""The prefix of a netCDF variable that has the name of a dimension but is not its coordinate."""

_ONLY_A_LENGTH = "This is a netCDF dimension but not a netCDF variable"
_NUMBER, _NUMBERS = "_Netcdf4Dimid", "_Netcdf4Coordinates"


def is_only_a_length(data: Any) -> bool:
    """Return whether a dataset is not a netCDF variable, but only stores the length of a dimension."""
    return _ONLY_A_LENGTH in str(data.attrs.get("NAME"))


def names_of(h5py: ModuleType, data: Any) -> tuple[str | None, ...]:
    """Return the names of a dataset's dimensions, by the rules of netCDF; the label of a dimension without a name."""
    names = [_last(dim[0].name) if len(dim) else None for dim in data.dims]
    if data.is_scale and data.ndim and not any(names):
        names = _names_of_scale(h5py, data)
    labels = [str(dim.label) or None for dim in data.dims]
    pairs = zip(names, labels, strict=True)
    return tuple(name or label for name, label in pairs)


def _names_of_scale(h5py: ModuleType, data: Any) -> list[str | None]:
    """Return the names of a scale's dimensions: its own name for the first; the others by their netCDF numbers."""
    names: list[str | None] = [_last(data.name), *[None] * (data.ndim - 1)]
    numbers = np.atleast_1d(data.attrs.get(_NUMBERS, ())).tolist()
    if len(numbers) != data.ndim or data.ndim == 1:
        return names
    by_number: dict[int, str] = {}
    group = data.parent
    while True:
        for key in group:
            # Only hard links: others may lead to another file.
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                continue
            node = group[key]
            if isinstance(node, h5py.Dataset) and _NUMBER in node.attrs:
                number = int(node.attrs[_NUMBER])
                by_number.setdefault(number, _last(node.name))
        if group.name == "/":
            return [by_number.get(number) for number in numbers]
        group = group.parent


def _last(path: object) -> str:
    """Return the last part of a path."""
    return str(path or "").rpartition("/")[2]


def _is_coordinate(path: str, names: Sequence[str | None]) -> bool:
    """Return whether a dataset has the name of its only dimension."""
    return tuple(names) == (_last(path),)


def attach(h5py: ModuleType, file: Any, written: Mapping[str, Sequence[str | None]]) -> None:
    """Name the dimensions of new datasets, by scales that netCDF and xarray find.

    A dataset with the name of its only dimension becomes the scale of this dimension. For a dimension without such a
    dataset in the same group or an outer one, make a dataset without items that stores the length.
    """
    for path, names in written.items():
        if _is_coordinate(path, names):
            file[path].make_scale(_last(path))
    for path, names in _rename(file, written).items():
        data = file[path]
        for dim, length, name in zip(data.dims, data.shape, names, strict=True):
            if name is None or _is_coordinate(path, names):
                continue
            scale = _find_or_make_scale(h5py, data.parent, name, length)
            if scale is None:
                dim.label = name
            else:
                dim.attach_scale(scale)


def _rename(file: Any, written: Mapping[str, Sequence[str | None]]) -> dict[str, Sequence[str | None]]:
    """Rename datasets that have the name of a dimension but are not its coordinate, as netCDF does."""
    used = {(path.rpartition("/")[0], name) for path, names in written.items() for name in names}
    by_path = {}
    for path, names in written.items():
        outer, slash, last = path.rpartition("/")
        if (outer, last) in used and not _is_coordinate(path, names):
            place = f"{outer}{slash}{NOT_A_COORDINATE}{last}"
            if place not in file:
                file.move(path, place)
                path = place  # noqa: PLW2901
        by_path[path] = names
    return by_path


def _find_or_make_scale(h5py: ModuleType, group: Any, name: str, length: int) -> Any:
    """Find the scale of a dimension in a group or a group around it, or make it; None if no scale can have the name."""
    if name in ("", ".") or "/" in name:
        return None
    around = group
    while True:
        is_hard = isinstance(around.get(name, getlink=True), h5py.HardLink)
        node = around[name] if is_hard else None
        if isinstance(node, h5py.Dataset) and node.is_scale and node.shape[:1] == (length,):
            return node
        if around.name == "/":
            break
        around = around.parent
    if name in group:
        return None
    # HDF5 allocates no room for items that are never written.
    scale = group.create_dataset(name, (length,), ">f4")
    scale.make_scale(f"{_ONLY_A_LENGTH}.{length:10d}")
    return scale
