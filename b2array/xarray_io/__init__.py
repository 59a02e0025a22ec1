"""xarray: arrays and groups as datasets and trees, and back.

A variable is an array whose dimensions have names. A dataset is a group of variables, and a tree is a group that
contains groups. The metadata of the CF conventions (units and calendars of times, scales, which variables are
coordinates) are attributes of arrays and groups.

backend           opens datasets and trees: ``xarray.open_dataset(url, engine="b2array")``
loading           one `read_many` for all variables of a dataset that xarray loads
writing           `to_b2array`, its modes, and the transaction; dask arrays in one graph
creating          makes new variables and attributes
variable_changes  changes existing variables: appends, regions, finer units of times
tasks             what `to_b2array` passes to the modules above
encoding          values of variables -> what is stored, in new arrays and in existing ones
preferences       chunks and other choices for new variables: as the call, dask or the opened file has them
indexes           where values go in existing arrays, and whether their labels agree
time_units        units that a coordinate shares with its bounds
"""

from __future__ import annotations

from typing import Any, Unpack

try:
    import xarray as xr
except ImportError:
    raise ModuleNotFoundError("b2array.xarray_io needs the package xarray: pip install 'b2array[xarray]'") from None

from b2array import accessors
from b2array.keywords import spell_out
from b2array.xarray_io.backend import Backend, Url
from b2array.xarray_io.writing import KEYWORDS, WriteKeywords, to_b2array

__all__ = ["Accessor", "Backend", "to_b2array"]


class Accessor:
    """``ds.b2array`` of datasets, arrays and trees of xarray; it comes with ``import b2array``.

    Examples
    --------
    >>> xr.Dataset({"a": ("x", [1, 2])}).b2array.to_b2array("memory://accessor.b2d")
    >>> xr.open_dataset("memory://accessor.b2d", engine=Backend).a.values.tolist()
    [1, 2]
    """

    def __init__(self, data: xr.Dataset | xr.DataArray | xr.DataTree) -> None:
        self._data = data

    @spell_out(WriteKeywords, KEYWORDS)
    def to_b2array(self, url: Url, **options: Unpack[WriteKeywords]) -> Any:
        """Write the dataset, array or tree as a group of arrays; parameters as for `b2array.xarray_io.to_b2array`."""
        return to_b2array(self._data, url, **options)


# Usually it is registered already. Not so if xarray was just being imported when b2array was.
accessors.register(xr)
