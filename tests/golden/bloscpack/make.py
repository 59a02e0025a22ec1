"""Make the golden files with Bloscpack 0.16, which needs Python 3.9 or older.

Run with the directory to write to; what the files hold is what `arrays` returns.
"""

import json
import sys
from pathlib import Path

import numpy as np

CHECKSUMS = ("None", "adler32", "crc32", "md5", "sha1", "sha224", "sha256", "sha384", "sha512")
CODECS = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")


def bytes_() -> bytes:
    return b"".join(b"%d bottles; " % n for n in range(500))


def arrays() -> dict:
    records = np.zeros(40, [("name", "S5"), ("pair", "<i2", (2,)), ("inner", [("x", "<f4"), ("y", "<f8")])])
    records["name"], records["pair"], records["inner"]["y"] = b"wave", [[1, 2]], np.arange(40)
    made = {
        "c": np.arange(600, dtype="<f8").reshape(20, 30),
        "f": np.asfortranarray(np.arange(600, dtype="<f8").reshape(20, 30)),
        "records": records,
        "big": np.arange(50, dtype=">i4"),
        "times": np.arange(50).astype("<M8[ms]"),
        "text": np.array(["alpha", "beta"] * 9),
        "empty": np.zeros((0, 3), "<i4"),
        "none": np.array(2.5),
        "ones": np.ones((7, 5), "?"),
    }
    for name in CHECKSUMS:
        made[f"checksum-{name}"] = np.arange(300, dtype="<i4")
    for name in CODECS:
        made[f"codec-{name}"] = np.tile(np.arange(100, dtype="<u2"), 9)
    return made


def main(directory: Path) -> None:
    import bloscpack
    from bloscpack import BloscArgs, BloscpackArgs, MetadataArgs, pack_bytes_to_bytes, pack_ndarray_to_bytes

    for name, array in arrays().items():
        kind, _, variant = name.partition("-")
        blosc_args = BloscArgs(cname=variant if kind == "codec" else "blosclz")
        checksum = variant if kind == "checksum" else "adler32"
        packed = pack_ndarray_to_bytes(
            array,
            chunk_size=array.itemsize * (450 if kind == "codec" else 17),
            blosc_args=blosc_args,
            bloscpack_args=BloscpackArgs(offsets=name != "f", checksum=checksum, max_app_chunks=3),
            metadata_args=MetadataArgs(meta_checksum=checksum, meta_codec="None" if name == "c" else "zlib"),
        )
        (directory / f"{name}.blp").write_bytes(packed)
    plain = pack_bytes_to_bytes(bytes_(), chunk_size=1000, metadata={"made by": "bloscpack " + bloscpack.__version__})
    (directory / "bytes.blp").write_bytes(plain)
    no_offsets = BloscpackArgs(offsets=False, checksum="None")
    (directory / "bytes-plain.blp").write_bytes(pack_bytes_to_bytes(bytes_(), bloscpack_args=no_offsets))
    noshuffle = BloscArgs(shuffle=False, clevel=0)
    (directory / "bytes-raw.blp").write_bytes(pack_bytes_to_bytes(bytes_(), blosc_args=noshuffle))
    appended(directory)


def appended(directory: Path) -> None:
    """Write a file to which more was appended."""
    from bloscpack import append, pack_bytes_to_bytes

    target, more = directory / "bytes-appended.blp", directory / "more.tmp"
    target.write_bytes(pack_bytes_to_bytes(bytes_()[:2500], chunk_size=1000))
    more.write_bytes(bytes_()[2500:])
    append.append(str(target), str(more))
    more.unlink()


def read_back(directory: Path) -> None:
    """Print what Bloscpack finds in files that others made: arrays as lists, bytes as their length."""
    import bloscpack.exceptions
    from bloscpack import unpack_bytes_from_file, unpack_ndarray_from_file

    found = {}
    for path in sorted(directory.glob("*.blp")):
        try:
            array = unpack_ndarray_from_file(str(path))
        except (KeyError, bloscpack.exceptions.NotANumpyArray):
            data, metadata = unpack_bytes_from_file(str(path))
            found[path.stem] = {"bytes": data.hex(), "metadata": metadata}
        else:
            order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
            found[path.stem] = {
                "data": array.tobytes().hex(),
                "dtype": repr(array.dtype.descr),
                "shape": array.shape,
                "order": order,
            }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    {"make": main, "read": read_back}[sys.argv[1]](Path(sys.argv[2]))
