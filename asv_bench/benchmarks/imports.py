"""Importing the package, each time in a new process."""


def timeraw_b2array() -> str:
    return "import b2array"


def timeraw_dependencies() -> str:
    """What b2array cannot do without, for comparison."""
    return "import fsspec, msgpack, numcodecs, numpy, zlib_ng.zlib_ng, zstandard"
