"""Names of other libraries: what zarr, h5py, xarray and python-blosc2 call something, and what to write instead.

The keys are names of functions and attributes. The values follow ``has no attribute 'name': `` in an error message.
`b2array.keywords` has the same for names of arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ARRAY", "ATTRS", "CONFIG", "ERRORS", "GROUP", "MODULE", "hint"]


def hint(name: str, table: Mapping[str, str]) -> str:
    """Return the end of an error message about a missing attribute.

    Examples
    --------
    >>> hint("nmembers", GROUP), hint("nothing", GROUP)
    (': len(group) is the number of members and groups in it', '')
    """
    text = table.get(name, "")
    return f": {text}" if text else ""


def _table(*rows: tuple[str, str]) -> Mapping[str, str]:
    """Return the hint for each name; a row has names, separated by spaces, and their hint."""
    return {name: hint for names, hint in rows for name in names.split()}


_CREATE = "b2array.create(url, shape, dtype) makes an array, b2array.asarray(values, url=url) stores one"
_CPARAMS = "a.cparams has codec, level and filters"
_SETS = "a.attrs.update(...) sets attributes in one commit"
_COMMITTED = "each assignment is committed when it returns; a.transaction() collects several"
_NO_METADATA = "only a group on a web server needs it: group.consolidate() prepares the group for one"
_PARTS = "a.chunks is what is stored at once, a.blocks is how much of it can be read alone"
_AT_ONCE = "there is no asynchronous interface, b2array.read_many reads several selections at once"
_NO_SYNCHRONIZER = "commits are atomic, so writers need no synchronizer"
_SETTINGS = "b2array.config.using(threads=1) changes a setting in a block, b2array.config.threads = 1 until the end"

MODULE = _table(
    ("Array", "arrays are instances of b2array.NDArray"),
    ("create_array from_array require_array open_like require_dataset", _CREATE),
    (
        "create_group group require_group File",
        "b2array.open_group(url, 'a') opens a group, or makes a missing one; mode 'w' replaces a group",
    ),
    ("save_array", "b2array.save(url, values) stores an array"),
    (
        "save_group savez savez_compressed",
        "store arrays as members of a group: b2array.open_group(url, 'a')[name] = values",
    ),
    ("open_consolidated consolidate_metadata", _NO_METADATA),
    ("tree", "b2array.open_group(url).tree() draws a group"),
    ("copy_all copy_store", "b2array.convert(src, dst) copies a whole group"),
    ("load_array load_tensor", "b2array.load(url) reads an array"),
    ("fromfile", "np.memmap(path, dtype, mode='r') maps a file, and b2array.asarray stores it"),
    ("set_nthreads", "b2array.config.threads is the number of threads"),
    ("create_hierarchy", "b2array.open_group(url, 'a').create(name, shape) makes the groups around a member as well"),
    ("AsyncArray AsyncGroup", _AT_ONCE),
    ("ThreadSynchronizer ProcessSynchronizer", _NO_SYNCHRONIZER),
    (
        "storage LocalStore DirectoryStore MemoryStore ZipStore FsspecStore FSStore ObjectStore",
        "a path or a URL names the place, storage_options= and fs= say how to reach it",
    ),
    (
        "Blosc BloscCodec Zstd ZstdCodec Zlib GZip GzipCodec LZ4",
        "b2array.CParams('zstd', clevel=5) says how to compress",
    ),
    ("set_format", "arrays are stored in the format of Blosc2"),
    ("set_log_level", "b2array writes no log, it warns with Python's warnings"),
    ("print_debug_info", "b2array.__version__ is the version"),
)
"""Functions and classes of packages."""

ARRAY = _table(
    ("cdata_shape", "a.grid_shape is the number of chunks along each dimension"),
    ("coarsen", "b2array.downsample(a, factors) makes one item of each block of items"),
    ("path name basename store_path file id", "a.url is the place of the array, which has no other name"),
    ("update_attributes", _SETS),
    ("nbytes_stored", "a.cbytes is the number of compressed bytes"),
    ("shards read_chunk_sizes write_chunk_sizes", _PARTS),
    ("config with_config", _SETTINGS),
    ("async_array", _AT_ONCE),
    ("synchronizer", _NO_SYNCHRONIZER),
    ("open", "b2array.open(url) opens an array or a group"),
    ("create from_dict", _CREATE),
    ("islice", "a[start:stop] reads rows, and a loop over the array yields them"),
    ("order", "items are stored in C order, the default order of NumPy"),
    ("read_only", "a.mode is 'r' for reading, 'r+' for reading and changing"),
    ("compressors compressor filters serializer compression compression_opts shuffle codec clevel", _CPARAMS),
    ("metadata info_complete", "a.info describes the array, a.meta has its metalayers"),
    ("get_basic_selection get_orthogonal_selection", "a[key] reads, a.oindex[key] selects along each axis"),
    ("set_basic_selection set_orthogonal_selection", "a[key] = values writes, a.oindex[key] = values along each axis"),
    ("get_mask_selection get_coordinate_selection", "a[mask] and a[rows, columns] read as in NumPy, as a.vindex does"),
    ("set_mask_selection set_coordinate_selection", "a[mask] = values and a[rows, columns] = values write as in NumPy"),
    ("get_block_selection set_block_selection blocks_view", "a.chunk_view[i, j] reads and writes whole chunks"),
    ("to_zarr", "b2array.convert(a.url, 'x.zarr') copies it"),
    ("rechunk", "a.copy(url, chunks=...) makes a copy with other chunks"),
    ("save", "a.copy(url) stores a copy of the array at another place"),
    ("flush sync", _COMMITTED),
    ("maxshape", "every array can grow, see a.resize and a.append"),
    ("fillvalue", "a.fill_value is the value of unwritten items"),
    ("write_direct", "a[key] = values writes"),
    ("len", "len(a) is the extent of the first axis"),
    ("vlmeta", "a.attrs has the variable-length metalayers"),
    ("schunk", "b2array.open_schunk(a.url) opens it as a super-chunk"),
    ("urlpath", "a.url is its place"),
    ("slice", "a[key] reads a part, a.view[key] is a lazy view of it"),
    ("iterchunks_info", "b2array info --chunks lists chunks on the command line"),
)
"""Attributes of arrays."""

GROUP = _table(
    (
        "array create_dataset empty full ones zeros",
        "group.create(name, shape, dtype) makes an array, group[name] = values stores one",
    ),
    ("require require_dataset", "see require_array and require_group"),
    ("rename rename_group", "group.move(old, new) gives a member another name"),
    ("update_attributes update_attributes_async", "group.attrs.update(...) sets attributes in one commit"),
    (
        "empty_like full_like ones_like zeros_like",
        "group.create(name, a.shape, a.dtype, chunks=a.chunks) makes an array",
    ),
    ("get_array get_group", "group[name] opens a member, or a group in this one"),
    ("require_groups", "group.require_group(name) makes one group, and the groups around it"),
    ("open from_store", "b2array.open_group(url, mode) opens or makes a group"),
    ("synchronizer", _NO_SYNCHRONIZER),
    ("array_keys array_values", "group.arrays() is a dictionary, see its keys and values"),
    ("group_keys group_values", "group.groups() is a dictionary, see its keys and values"),
    ("visit visititems members", "group.walk() yields names and members"),
    ("nmembers", "len(group) is the number of members and groups in it"),
    ("path basename", "group.name is the name in the outermost group, group.url the place"),
    ("store store_path file filename", "group.url is the place of the group"),
    ("read_only", "group.mode is 'r' for reading, 'r+' for reading and changing"),
    (
        "create_hierarchy",
        "group.create(name, shape) makes the groups around a member as well",
    ),
    ("metadata info_complete", "group.info describes the members"),
    ("flush sync", "each change is committed when it returns; group.transaction() collects several"),
    ("vlmeta", "group.attrs has the attributes"),
)
"""Attributes of groups."""

ATTRS = _table(
    ("put", "attrs.update(values) sets several in one commit; attrs.clear() removes all"),
    ("asdict", "dict(attrs) makes a dictionary of all attributes"),
    ("create modify", "attrs[name] = value sets one"),
    ("getall", "dict(attrs) makes a dictionary of all attributes"),
    ("refresh", "refresh() of the array or the group shows what others have changed"),
)
"""Attributes of mappings of attributes."""

CONFIG = _table(("get set reset enable_gpu", _SETTINGS))
"""Attributes of the package's settings."""

ERRORS = _table(
    ("ArrayNotFoundError GroupNotFoundError NodeNotFoundError", "a missing array or group raises FileNotFoundError"),
    (
        "ContainsArrayError ContainsGroupError ContainsArrayAndGroupError",
        "a taken place raises FileExistsError",
    ),
    ("BoundsCheckError VindexInvalidSelectionError", "an index out of bounds raises IndexError, as in NumPy"),
    ("MetadataValidationError", "damaged or unknown bytes raise FormatError or UnsupportedError"),
)
"""Classes of errors."""
