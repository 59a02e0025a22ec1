"""A NumPy-compatible chunked array store in the Blosc2 formats."""

import importlib as _importlib
import typing as _typing

# Import numcodecs first: it expects only numbers in the version of zfpy, and otherwise fails with an obscure error.
try:
    import numcodecs as _numcodecs  # noqa: F401
except ValueError as error:
    raise ImportError(
        "numcodecs cannot be imported beside this release of zfpy (1.0.1.post0 is one): pip install zfpy==1.0.1"
    ) from error

from b2array import config, errors
from b2array.accessors import when_xarray_is_imported as _when_xarray_is_imported
from b2array.array.array import NDArray
from b2array.array.array_snapshots import SnapshotInfo
from b2array.array.chunkwise import map as map
from b2array.array.creation import (
    asarray,
    create,
    empty,
    empty_like,
    from_blocks,
    from_dask,
    full,
    full_like,
    ones,
    ones_like,
    save,
    zeros,
    zeros_like,
)
from b2array.array.frame_making import join_groups as _join_groups
from b2array.array.schunk import SChunk, create_schunk
from b2array.array.sequences import arange, eye, fromiter, linspace
from b2array.array.tensors import from_bytes
from b2array.codec import codecs, filters
from b2array.codec.cparams import CParams
from b2array.codec.decode import decompress
from b2array.codec.encode import compress
from b2array.compute.reductions import (
    nanargmax,
    nanargmin,
    nanmax,
    nanmean,
    nanmin,
    nanprod,
    nanstd,
    nansum,
    nanvar,
)
from b2array.keywords import refuse_calls as _refuse_calls

if _typing.TYPE_CHECKING:
    from b2array import bloscpack
    from b2array import xarray_io as xarray_io
    from b2array.array.appender import Appender
    from b2array.array.downsampling import downsample
    from b2array.array.joining import concatenate, stack
    from b2array.array.many import read_many
    from b2array.array.objects import Items
    from b2array.exchange.convert import convert
    from b2array.group.addressing import open as open
    from b2array.group.addressing import open_array
    from b2array.group.blosc2_tables import Table
    from b2array.group.group import Group, open_group
    from b2array.group.ragged import Rows
    from b2array.group.snapshot_list import GroupDiff
    from b2array.group.sources import copy, load, open_schunk
    from b2array.tools.expire import expire
    from b2array.tools.repair import repair
    from b2array.tools.vacuum import repack, vacuum
    from b2array.tools.verify import verify

    __version__: str

__all__ = [
    "Appender",
    "CParams",
    "Group",
    "GroupDiff",
    "Items",
    "NDArray",
    "Rows",
    "SChunk",
    "SnapshotInfo",
    "Table",
    "arange",
    "asarray",
    "bloscpack",
    "codecs",
    "compress",
    "concatenate",
    "config",
    "convert",
    "copy",
    "create",
    "create_schunk",
    "decompress",
    "downsample",
    "empty",
    "empty_like",
    "errors",
    "expire",
    "eye",
    "filters",
    "from_blocks",
    "from_bytes",
    "from_dask",
    "fromiter",
    "full",
    "full_like",
    "linspace",
    "load",
    "nanargmax",
    "nanargmin",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
    "ones",
    "ones_like",
    "open_array",
    "open_group",
    "open_schunk",
    "read_many",
    "repack",
    "repair",
    "save",
    "stack",
    "vacuum",
    "verify",
    "zeros",
    "zeros_like",
]

_NAMED_LIKE_BUILTINS = ("map", "open")
"""Public, but not in `__all__`: ``from b2array import *`` must not hide Python's built-in functions."""

# Names that only some programs use are imported at their first use, so that importing b2array takes little longer
# than importing its dependencies.
_LAZY = {
    "Appender": "array.appender",
    "Group": "group.group",
    "GroupDiff": "group.snapshot_list",
    "Items": "array.objects",
    "Rows": "group.ragged",
    "Table": "group.blosc2_tables",
    "bloscpack": "bloscpack",
    "concatenate": "array.joining",
    "convert": "exchange.convert",
    "copy": "group.sources",
    "downsample": "array.downsampling",
    "expire": "tools.expire",
    "load": "group.sources",
    "open": "group.addressing",
    "open_array": "group.addressing",
    "open_group": "group.group",
    "open_schunk": "group.sources",
    "read_many": "array.many",
    "repack": "tools.vacuum",
    "repair": "tools.repair",
    "stack": "array.joining",
    "vacuum": "tools.vacuum",
    "verify": "tools.verify",
    "xarray_io": "xarray_io",  # not in __all__: it needs xarray
}


_when_xarray_is_imported()
_join_groups(lambda *member: _importlib.import_module("b2array.group.member_making").make_member(*member))
_refuse_calls("b2array.array", "b2array.asarray stores an array, b2array.open opens one")


def __getattr__(name: str) -> _typing.Any:
    if name == "__version__":
        value = _importlib.import_module("importlib.metadata").version(__name__)
    elif name in _LAZY:
        module = _importlib.import_module(f"{__name__}.{_LAZY[name]}")
        value = module if name == _LAZY[name] else getattr(module, name)
    else:
        neighbours = _importlib.import_module("b2array.neighbours")
        hint = neighbours.hint(name, neighbours.MODULE)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # Packages become attributes when they are imported; they are not public.
    special = [name for name in globals() if name.startswith("__")]
    return sorted({*special, *__all__, *_NAMED_LIKE_BUILTINS, "__version__"})
