"""Files without a frame: recognises formats by first bytes or endings, and says how to open them. No I/O."""

from __future__ import annotations

from b2array.buffers import Buffer

__all__ = ["ZARR", "check_ending", "describe", "zarr_text"]

_CONVERT = "b2array.convert stores it as an array"
_MAGICS = (
    (b"\x93NUMPY", "a .npy file, which numpy.load opens; " + _CONVERT),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, which h5py opens; " + _CONVERT),
    (b"CDF", "a netCDF file of version 3, which b2array.convert reads"),
    (b"blpk", "a Bloscpack file, which b2array.bloscpack.open opens"),
    (b"\x9e\xa8b2frame\0", "a Blosc2 frame, which b2array.open opens"),
    (b"\x80", "a pickle, which is not safe to open"),
    (b"\x1f\x8b", "a file packed by gzip"),
    (b"\x28\xb5\x2f\xfd", "a file packed by zstd"),
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "a Feather file"),
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
)
ZARR = ("zarr.json", ".zarray", ".zgroup")
"""The names of metadata files: every Zarr directory contains one of them."""


def describe(buf: Buffer) -> str:
    """Return the format of a file as text, judging by its first bytes, and name a function that opens it.

    Examples
    --------
    >>> describe(b""), describe(b"x,y")
    ('an empty file', "text, b'x,y'")
    """
    start = bytes(buf[:64])
    if not start:
        return "an empty file"
    if start[:4] in (b"PK\3\4", b"PK\5\6"):
        if start[30:].partition(b".npy")[1]:
            return "a .npz file, which numpy.load opens"
        return "a zip archive; b2array.open opens those of python-blosc2 (.b2z)"
    format_name = next((what for magic, what in _MAGICS if start.startswith(magic)), "")
    if format_name:
        return format_name
    is_text = all(32 <= byte < 127 or byte in b"\t\r\n" for byte in start)
    return f"{'text, ' * is_text}{start[:16]!r}"


def zarr_text(url: str) -> str:
    """Return the text for error messages which says that a directory belongs to Zarr."""
    return f"{url} is a directory of Zarr, which zarr.open opens; b2array.convert copies it"


_ENDINGS = {
    **dict.fromkeys((".h5", ".hdf", ".hdf5", ".he5"), "an HDF5 file"),
    **dict.fromkeys((".nc", ".nc4"), "a netCDF file"),
    ".b2z": "an archive of a group",
    ".blp": "a Bloscpack file",
    ".npy": "a NumPy file",
    ".npz": "a NumPy archive",
    ".zarr": "a Zarr hierarchy",
}
_OF_XARRAY = (".h5", ".hdf5", ".nc", ".nc4", ".zarr")
_NOT_CONVERTED = (".npz",)


def check_ending(path: str, url: str, *, group: bool = False) -> None:
    """Raise ValueError if the path of a new array or group has the ending of another format.

    Examples
    --------
    >>> check_ending("data/q.npy", "q.npy")
    Traceback (most recent call last):
    ValueError: q.npy: expected an ending such as .b2nd for an array, found that of a NumPy file; b2array.convert(...
    """
    path = path.rstrip("/\\").lower()
    ending = next((each for each in _ENDINGS if path.endswith(each)), None)
    if ending is None:
        return
    mine, kind = (".b2d", "a group") if group else (".b2nd", "an array")
    hints = []
    if ending not in _NOT_CONVERTED:
        hints.append(f"b2array.convert('name{mine}', 'name{ending}') writes one")
    if group and ending in _OF_XARRAY:
        hints.append(f"to_b2array(ds, 'name{mine}') writes datasets of xarray")
    hint = "".join(f"; {each}" for each in hints)
    raise ValueError(f"{url}: expected an ending such as {mine} for {kind}, found that of {_ENDINGS[ending]}{hint}")
