"""What other array libraries can do: tries the cells of the README's table that a few lines of code can show.

    python asv_bench/others.py

It needs nothing but the libraries. One that is not installed is left out. `docs/explanation/other-libraries.rst` says
which cell each line shows, and where the others are documented.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

VALUES = np.random.default_rng(0).integers(0, 1000, (20, 50))
TEXT = np.array(["a", "a longer text"], dtype=np.dtypes.StringDType())

Try = Callable[[Path], object]


def main() -> None:
    """Print a line for each cell: the library, what was tried, and what happened."""
    warnings.simplefilter("ignore")
    for library, tries in TRIES.items():
        try:
            module = importlib.import_module(library)
        except ImportError:
            print(f"{library} is not installed")
            continue
        print(f"\n{library} {importlib.metadata.version(library)}")
        for what, attempt in tries(module).items():
            with tempfile.TemporaryDirectory() as folder:
                print(f"  {what:<36} {_outcome(attempt, Path(folder))}")


def _outcome(attempt: Try, folder: Path) -> str:
    try:
        found = attempt(folder)
    except Exception as error:  # noqa: BLE001 - the error is the answer
        lines = str(error).splitlines() or [""]
        return f"no: {type(error).__name__}: {lines[0][:90]}"
    return found if isinstance(found, str) else ("yes" if found else "no")


def _is_found(path: Path, read: Callable[[], object]) -> bool:
    """Return whether a changed byte in the middle of a file is an error; it changes a value otherwise."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    try:
        read()
    except Exception:  # noqa: BLE001 - any error is one
        return True
    return False


def _after_a_kill(code: str, folder: Path, read: Callable[[], object]) -> str:
    """Run a program that ends without cleaning up in the middle of its writes, and read what it had written before."""
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=False)
    try:
        values = np.asarray(read())
    except Exception as error:  # noqa: BLE001 - the error is the answer
        return f"no: {type(error).__name__}: {str(error).splitlines()[0][:80]}"
    return "yes" if (values == 1).all() else "no: other values"


def _b2array(b2array: ModuleType) -> dict[str, Try]:
    def insert(_: Path) -> bool:
        a = b2array.asarray(VALUES)
        a.insert(VALUES[:2], 3)
        return bool((a[...] == np.insert(VALUES, [3, 3], VALUES[:2], axis=0)).all())

    def checksums(folder: Path) -> bool:
        path = folder / "a.b2nd"
        b2array.asarray(VALUES, url=path, cparams=b2array.CParams(clevel=0))
        return _is_found(path, lambda: b2array.open(path)[...])

    return {
        "writes to a remote store in place": lambda _: _write_remote(b2array),
        "inserts along an axis": insert,
        "a changed byte is an error": checksums,
        "text of any length": lambda _: bool((b2array.asarray(TEXT)[:] == TEXT).all()),
        "xarray has an engine for it": lambda _: _has_engine("b2array"),
    }


def _write_remote(b2array: ModuleType) -> bool:
    a = b2array.asarray(VALUES, url="memory://others.b2nd")
    a[0] = 5
    return bool((b2array.open("memory://others.b2nd")[0] == 5).all())


def _blosc2(blosc2: ModuleType) -> dict[str, Try]:
    def save_remote(_: Path) -> bool:
        blosc2.asarray(VALUES).save("memory://others-stock.b2nd", mode="w")
        return bool((blosc2.open("memory://others-stock.b2nd")[:] == VALUES).all())

    def change_remote(_: Path) -> bool:
        blosc2.asarray(VALUES).save("memory://others-stock.b2nd", mode="w")
        blosc2.open("memory://others-stock.b2nd", mode="a")[0] = 5
        return True

    def checksums(folder: Path) -> bool:
        path = folder / "a.b2nd"
        blosc2.asarray(VALUES, urlpath=str(path), cparams=blosc2.CParams(clevel=0))
        return _is_found(path, lambda: blosc2.open(str(path))[:])

    return {
        "uploads a whole array": save_remote,
        "opens a URL lazily": lambda _: save_remote(_) and type(blosc2.open("memory://others-stock.b2nd")).__name__,
        "changes an array in a remote store": change_remote,
        "has functions to insert and delete": lambda _: any(hasattr(blosc2.NDArray, n) for n in ("insert", "delete")),
        "a changed byte is an error": checksums,
        "text of any length": lambda _: type(blosc2.asarray(TEXT)).__name__,
        "xarray has an engine for it": lambda _: _has_engine("blosc2"),
    }


def _zarr(zarr: ModuleType) -> dict[str, Try]:
    def text(_: Path) -> bool:
        z = zarr.create_array({}, shape=TEXT.shape, dtype=TEXT.dtype)
        z[:] = TEXT
        return bool((z[:] == TEXT).all())

    def checksums(folder: Path, codecs: tuple[object, ...] = ()) -> bool:
        options = {"shape": VALUES.shape, "dtype": VALUES.dtype, "chunks": VALUES.shape, "compressors": codecs or None}
        z = zarr.create_array(str(folder / "z"), **options)
        z[:] = VALUES
        return _is_found(folder / "z" / "c" / "0" / "0", lambda: zarr.open_array(str(folder / "z"))[:])

    def lazy(_: Path) -> bool:
        z = zarr.array(VALUES)
        view = importlib.import_module("zarr_indexing").LazyArray(z)[2:9, ::3]
        return bool((view.result() == VALUES[2:9, ::3]).all())

    return {
        "text of any length": text,
        "a changed byte is an error": checksums,
        "the same with the codec crc32c": lambda folder: checksums(folder, (zarr.codecs.Crc32cCodec(),)),
        "lazy views with zarr-indexing": lazy,
        "has an asynchronous interface": lambda _: hasattr(zarr.AsyncArray, "getitem"),
        "has functions to insert and delete": lambda _: any(hasattr(zarr.Array, n) for n in ("insert", "delete")),
    }


def _h5py(h5py: ModuleType) -> dict[str, Try]:
    def text(folder: Path) -> bool:
        with h5py.File(folder / "t.h5", "w") as file:
            return bool((file.create_dataset("t", data=TEXT).asstr()[:] == TEXT).all())

    def checksums(folder: Path, fletcher32: bool = False) -> bool:
        with h5py.File(folder / "c.h5", "w") as file:
            file.create_dataset("c", data=VALUES, chunks=VALUES.shape, fletcher32=fletcher32)

        def read() -> object:
            with h5py.File(folder / "c.h5") as file:
                return file["c"][:]

        return _is_found(folder / "c.h5", read)

    def killed(folder: Path) -> str:
        code = """
import os, h5py, numpy
file = h5py.File("k.h5", "w")
file.create_dataset("a", data=numpy.ones((50, 1000)), chunks=(1, 1000))
file.close()
file = h5py.File("k.h5", "a")
for n in range(20_000):
    file.create_dataset(f"b{n}", data=numpy.ones(50), chunks=(10,))
os._exit(0)
"""

        def read() -> object:
            with h5py.File(folder / "k.h5") as file:
                return file["a"][:]

        return _after_a_kill(code, folder, read)

    return {
        "text of any length": text,
        "a changed byte is an error": checksums,
        "the same with fletcher32": lambda folder: checksums(folder, fletcher32=True),
        "a file survives a killed writer": killed,
        "has functions to insert and delete": lambda _: any(hasattr(h5py.Dataset, n) for n in ("insert", "delete")),
    }


def _tensorstore(ts: ModuleType) -> dict[str, Try]:
    def kvstore(driver: str, **place: str) -> bool:
        ts.KvStore.open({"driver": driver, **place}).result()
        return True

    def text(_: Path) -> bool:
        spec = {"driver": "zarr3", "kvstore": "memory://others"}
        ts.open(spec, dtype=ts.string, shape=[2], create=True).result()
        return True

    return {
        "stores of S3": lambda _: kvstore("s3", bucket="bucket", aws_region="eu-west-1"),
        "stores of Google": lambda _: kvstore("gcs", bucket="bucket"),
        "stores of Azure": lambda _: kvstore("azure", bucket="bucket"),
        "versioned stores (OCDBT)": lambda folder: kvstore("ocdbt", base=f"file://{folder}/"),
        "text of any length": text,
        "has an asynchronous interface": lambda _: hasattr(ts.Future, "__await__"),
    }


def _has_engine(name: str) -> bool:
    return name in importlib.metadata.entry_points(group="xarray.backends").names


TRIES: dict[str, Callable[[ModuleType], dict[str, Try]]] = {
    "b2array": _b2array,
    "blosc2": _blosc2,
    "zarr": _zarr,
    "h5py": _h5py,
    "tensorstore": _tensorstore,
}


if __name__ == "__main__":
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    main()
