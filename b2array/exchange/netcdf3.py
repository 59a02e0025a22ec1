"""Variables of netCDF-3 files, read-only, through the library scipy.

Source: "The NetCDF Classic Format Specification" of the NetCDF User's Guide.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from b2array.errors import FormatError, UnsupportedError
from b2array.exchange import formats
from b2array.exchange.formats import ArraySource, Box, Format, Hierarchy, Storage
from b2array.group.addressing import split_member
from b2array.store.secrets import redact_url

__all__ = ["MAGICS", "NETCDF3"]

_CDF5 = b"CDF\x05"
MAGICS = (b"CDF\x01", b"CDF\x02", _CDF5)
"""The first bytes of files with 32-bit offsets, with 64-bit offsets, and with 64-bit sizes."""


@contextmanager
def _tree(url: str, storage_options: Storage) -> Iterator[Hierarchy]:
    """Open a file, or one variable in it."""
    scipy_io = formats.require("scipy.io", "netcdf3", "netCDF-3")
    address, wanted = split_member(url)
    place = redact_url(address)
    with formats.local_copy(address, storage_options) as path:
        if formats.first_bytes(path).startswith(_CDF5):
            raise UnsupportedError(
                f"{place} has 64-bit sizes (CDF-5), which scipy cannot read: nccopy -k nc4 makes a netCDF-4 file of it"
            )
        try:
            file = scipy_io.netcdf_file(path, "r", mmap=True)
        except Exception as error:  # damage makes scipy raise many kinds of errors
            raise FormatError(
                f"{place}: expected a netCDF-3 file, found {str(error) or type(error).__name__}"
            ) from error
        try:
            yield _hierarchy(file, wanted, place)
        finally:
            # The traceback of an error may refer to items of the file; then scipy warns, and the system unmaps the file
            # later.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                file.close()


def _hierarchy(file: Any, wanted: str, place: str) -> Hierarchy:
    """Return the variables of an open file, or only the `wanted` one."""
    if file._recs < 0:
        raise UnsupportedError(f"{place} does not tell its number of records: its writer may not have finished")
    if wanted:
        if wanted not in file.variables:
            raise FileNotFoundError(f"{place} holds no variable {wanted!r}")
        return Hierarchy(("",), lambda _: _source(file, wanted, place))
    attrs = {"": lambda: _attrs(file._attributes)}
    return Hierarchy(tuple(file.variables), partial(_source, file, place=place), attrs)


def _source(file: Any, name: str, place: str) -> ArraySource:
    # The file can be closed only when nothing refers to its items, so every read returns a copy.
    variable = file.variables[name]
    dtype, dims, shape = variable.data.dtype.newbyteorder("="), variable.dimensions, variable.data.shape
    if len(dims) != len(shape):
        raise FormatError(f"{place}#{name}: expected {len(dims)} dimensions, found {len(shape)}")
    attrs = _attrs(variable._attributes)

    def read(box: Box) -> npt.NDArray[Any]:
        return np.array(file.variables[name].data[box], dtype)

    missing = np.asarray(attrs.get("_FillValue", 0))
    # A number, because a function that refers to the variable would keep the file from closing.
    nbytes = variable.data.nbytes
    source = ArraySource(
        shape,
        dtype,
        read,
        attrs=attrs,
        dims=dims or None,
        fill_value=missing[()] if missing.dtype == dtype and not missing.ndim else 0,
        stored=lambda: nbytes,
        unlimited=(0,) if variable.isrec else (),
    )
    return formats.with_booleans(source)


def _attrs(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _unpack_attr(name, value) for name, value in stored.items()}


def _unpack_attr(name: str, value: Any) -> Any:
    """Return an attribute in types of Python and NumPy: text, a number, or numbers in native byte order."""
    if isinstance(value, bytes):
        # Bytes that are not UTF-8 stay bytes.
        with suppress(UnicodeDecodeError):
            return value.decode("utf-8")
        return value
    native = np.asarray(value)
    native = native.astype(native.dtype.newbyteorder("="))
    keeps_type = name in formats.PACKING and native.dtype.char not in "dl"
    return native if native.ndim or keeps_type else native.item()


def _refuse(*_: object) -> NoReturn:
    raise UnsupportedError("netCDF-3 can only be read: write an .nc file, which is netCDF-4")


NETCDF3 = Format("netcdf3", (), _tree, _refuse, _refuse, magics=MAGICS)
