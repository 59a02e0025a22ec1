"""b2array beside python-blosc2 and, if asked for, zarr: the same data, the same chunks and blocks, codec and level.

    python asv_bench/compare.py [--quick] [--zarr] [--data NAME ...] [--codec NAME ...] [--rounds N]

Both Blosc2 libraries read one file, which python-blosc2 has written, from the system's memory, and b2array does so
without its cache of decoded blocks. The libraries take turns, and the tables give medians. A ratio below 1 means that
b2array takes less. Files are in a temporary directory that is removed at the end.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import blosc2
import numpy as np
from benchmarks import BLOCKS, CHUNKS, CODECS, DATA

import b2array
from b2array import config

SHAPE = (256, 256, 512)
QUICK = (64, 256, 256)
CLEVEL = 5
SAMPLE_SECONDS = 0.02
"""What takes less is repeated within one sample."""

Verb = Callable[[], Any]
Row = dict[str, float]


class Library(NamedTuple):
    name: str
    write: Callable[[np.ndarray, Path, str], Any]
    open: Callable[[Path], Any]
    import_line: str


def write_b2array(data: np.ndarray, path: Path, codec: str) -> None:
    b2array.asarray(data, url=path, chunks=CHUNKS, blocks=BLOCKS, cparams=b2array.CParams(codec, CLEVEL))


def write_b2array_split(data: np.ndarray, path: Path, codec: str) -> None:
    """Write blocks in as many streams as python-blosc2 does."""
    cparams = b2array.CParams(codec, CLEVEL, splitmode="blosc2")
    b2array.asarray(data, url=path, chunks=CHUNKS, blocks=BLOCKS, cparams=cparams)


def write_blosc2(data: np.ndarray, path: Path, codec: str) -> None:
    cparams = {"codec": blosc2.Codec[codec.upper()], "clevel": CLEVEL}
    blosc2.asarray(data, urlpath=str(path), mode="w", chunks=CHUNKS, blocks=BLOCKS, cparams=cparams)


def write_zarr(data: np.ndarray, path: Path, codec: str) -> None:
    """Write shards in place of chunks and chunks in place of blocks."""
    import zarr

    compressor = zarr.codecs.BloscCodec(cname=codec, clevel=CLEVEL, shuffle="shuffle")
    zarr.create_array(str(path), data=data, shards=CHUNKS, chunks=BLOCKS, compressors=compressor)


def open_zarr(path: Path) -> Any:
    import zarr

    return zarr.open_array(str(path), mode="r")


OURS = Library("b2array", write_b2array, b2array.open, "import b2array; a = b2array.open({path!r})")
STOCK = Library(
    "blosc2",
    write_blosc2,
    lambda path: blosc2.open(str(path), mode="r"),
    "import blosc2; a = blosc2.open({path!r}, mode='r')",
)
ZARR = Library("zarr", write_zarr, open_zarr, "import zarr; a = zarr.open_array({path!r}, mode='r')")


def parts(shape: tuple[int, ...]) -> dict[str, Any]:
    """Return what is read: labels and keys, none of which begins where a chunk or block does."""
    z, y, x = (n // 2 + 5 for n in shape)
    box = tuple(slice(n // 8 + 3, n // 8 + 3 + n * 3 // 8) for n in shape)
    return {
        "read all": (...,),
        "read box": box,
        "read slab [i]": (z,),
        "read slab [:, :, k]": (slice(None), slice(None), x),
        "read point": (z, y, x),
    }


def interleaved(verbs: dict[str, Verb], rounds: int, before: Verb = lambda: None) -> Row:
    """Return the median seconds of each verb; `before` is called ahead of every sample and does not count."""
    numbers = {}
    for name, verb in verbs.items():
        before()
        seconds = sample(verb, 1)
        numbers[name] = max(1, int(SAMPLE_SECONDS / seconds))
    samples: dict[str, list[float]] = {name: [] for name in verbs}
    order = list(verbs)
    for _ in range(rounds):
        for name in order:
            before()
            samples[name].append(sample(verbs[name], numbers[name]))
        order.append(order.pop(0))
    return {name: median(each) for name, each in samples.items()}


def sample(verb: Verb, number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        verb()
    return (time.perf_counter() - start) / number


def compare_reads(libraries: list[Library], paths: dict[str, Path], data: np.ndarray, rounds: int) -> dict[str, Row]:
    arrays = {library.name: library.open(paths[library.name]) for library in libraries}
    rows = {}
    for label, key in parts(data.shape).items():
        for name, array in arrays.items():
            if not np.array_equal(array[key], data[key]):
                raise SystemExit(f"{name}: {label} is not what was written")
        more = rounds if label == "read all" else 3 * rounds
        rows[label] = interleaved({name: lambda a=a, key=key: a[key] for name, a in arrays.items()}, more)
    rows["open"] = interleaved(
        {library.name: lambda each=library: each.open(paths[each.name]) for library in libraries}, 3 * rounds
    )
    return rows


def compare_writes(
    libraries: list[Library], directory: Path, data: np.ndarray, codec: str, rounds: int
) -> dict[str, Row]:
    """Return times and sizes: b2array splits blocks into streams in its own way, then as python-blosc2 does."""
    target = directory / "written.b2nd"
    split = OURS._replace(write=write_b2array_split)
    rows = {}
    for label, first in (("write", OURS), ("write, split alike", split)):
        writers = {each.name: each.write for each in (first, *libraries[1:])}
        verbs = {name: lambda write=write: write(data, target, codec) for name, write in writers.items()}
        rows[label] = interleaved(verbs, rounds, before=lambda: remove(target))
        rows[label.replace("write", "size")] = {name: written_nbytes(verb, target) for name, verb in verbs.items()}
    remove(target)
    return rows


def written_nbytes(verb: Verb, target: Path) -> float:
    remove(target)
    verb()
    return nbytes(target)


def nbytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


# The high-water mark that getrusage() gives includes, on Linux, the size of the process that started this one.
PROBE = """
import json, sys
def peak():
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except OSError:
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
{first}
before = peak()
result = a[...]
print(json.dumps([peak() - before - result.nbytes, peak() - result.nbytes]))
"""


def compare_peaks(libraries: list[Library], paths: dict[str, Path]) -> dict[str, Row]:
    """Return how many bytes a full read takes beyond its result, and the process beyond it."""
    rows: dict[str, Row] = {"peak - result": {}, "process - result": {}}
    for library in libraries:
        first = library.import_line.format(path=str(paths[library.name]))
        found = json.loads(run(PROBE.format(first=first)))
        for row, value in zip(rows.values(), found, strict=True):
            row[library.name] = value
    return rows


DEPENDENCIES = "import fsspec, isal.isal_zlib, msgpack, numcodecs, numpy, zstandard"


def compare_imports(directory: Path, rounds: int) -> Row:
    lines = {"b2array": "import b2array", "its dependencies": DEPENDENCIES, "blosc2": "import blosc2"}
    environment = {"PYTHONPYCACHEPREFIX": str(directory / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
    samples: dict[str, list[float]] = {name: [] for name in lines}
    # The first round compiles.
    for _ in range(rounds + 1):
        for name, line in lines.items():
            script = f"import time; start = time.perf_counter(); {line}; print(time.perf_counter() - start)"
            samples[name].append(float(run(script, environment)))
    return {name: median(each[1:]) for name, each in samples.items()}


def run(script: str, environment: dict[str, str] | None = None) -> str:
    command = [sys.executable, "-c", script]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | (environment or {})
    ).stdout


def show(title: str, rows: dict[str, Row]) -> None:
    names = list(next(iter(rows.values())))
    first, *others = names
    header = "".join(f"{name:>20}" for name in names) + "".join(f"{'/ ' + name:>20}" for name in others)
    print(f"\n{title}\n{'':<22}{header}")
    for label, row in rows.items():
        in_bytes = label.startswith(("size", "peak", "process"))
        values = "".join(
            f"{row[name] / 1e6:>17.2f} MB" if in_bytes else f"{row[name] * 1e3:>17.3f} ms" for name in names
        )
        ratios = "".join(f"{row[first] / row[name]:>20.2f}" if row[name] > 0 else f"{'-':>20}" for name in others)
        print(f"{label:<22}{values}{ratios}", flush=True)


def compare(libraries: list[Library], directory: Path, data: np.ndarray, codec: str, rounds: int) -> dict[str, Row]:
    stock = directory / "stock.b2nd"
    paths = {OURS.name: stock, STOCK.name: stock, ZARR.name: directory / "zarr"}
    for library in libraries[1:]:
        library.write(data, paths[library.name], codec)
    rows = compare_reads(libraries, paths, data, rounds)
    rows |= compare_peaks(libraries, paths)
    rows |= compare_writes(libraries, directory, data, codec, rounds)
    for library in libraries[1:]:
        remove(paths[library.name])
    return rows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="34 MB of data instead of 268, and fewer rounds")
    parser.add_argument("--zarr", action="store_true", help="measure zarr as well")
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--codec", nargs="+", choices=CODECS, default=list(CODECS))
    parser.add_argument("--rounds", type=int, help="samples of each value (three times as many where it is small)")
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    rounds = chosen.rounds or (3 if chosen.quick else 7)
    libraries = [OURS, STOCK, *([ZARR] if chosen.zarr else [])]
    shape = QUICK if chosen.quick else SHAPE
    versions = f"Python {sys.version.split()[0]}, NumPy {np.__version__}, python-blosc2 {blosc2.__version__}"
    threads = f"threads: b2array {config.threads}, python-blosc2 {blosc2.nthreads}"
    print(f"{versions}, {os.cpu_count()} CPUs\n{threads}; no fsync; medians of {rounds} rounds or more")
    with tempfile.TemporaryDirectory(prefix="b2array-compare-") as temporary, config.using(cache_bytes=0):
        directory = Path(temporary)
        show("import, in a new process", {"import": compare_imports(directory, 3 * rounds)})
        for name in chosen.data:
            data = DATA[name](shape)
            for codec in chosen.codec:
                rows = compare(libraries, directory, data, codec, rounds)
                title = f"{name}: {data.dtype} {shape}, {data.nbytes / 1e6:.0f} MB; {codec}, level {CLEVEL}"
                show(f"{title}; chunks {CHUNKS}, blocks {BLOCKS}", rows)


if __name__ == "__main__":
    main()
