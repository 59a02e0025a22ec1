"""Makes the golden files beside this script, and says what is in them.

    python tests/golden/make.py [names]

The files of `STOCK` and `SCHUNKS` were written by python-blosc2 4.14.1, those of `OURS` by b2array 0.1, the chunks of
`CHUNK` by whom their name says (those of Blosc1 by numcodecs 0.16). Old files are the point: make only new ones, and
never make one again because it cannot be read any more.
"""

from __future__ import annotations

import shutil
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).parent

SHAPE, CHUNKS, BLOCKS = (31, 19), (16, 10), (7, 5)


class Case(NamedTuple):
    """What `make` writes to a path, given the values that a reader must find."""

    values: Callable[[], np.ndarray]
    make: Callable[[Path, np.ndarray], None]


# Values.


def ramp(dtype: Any = "<i4") -> np.ndarray:
    """Smooth, noisy and constant regions, so that streams are compressed, raw and runs."""
    n = np.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE)
    values = n * 37 + (n * n * 2654435761 >> 7) % 64
    values[:8] = 1000 + np.arange(SHAPE[1]) // 5
    values[16:24, :10] = 0
    return values.astype(dtype)


def recurring() -> np.ndarray:
    """Few rows of noise, over and over: blocks have little in themselves, and all in common for a dictionary."""
    rows = noise(7 * 60 * 4).copy().view("<i4").reshape(7, 60)
    return rows[np.arange(200) * 5 % 7]


LONG = {"chunks": (180, 60), "blocks": (4, 60)}


def truncated(bits: int) -> np.ndarray:
    """Float values with so many bits of their mantissas left."""
    values = (ramp() / 7).astype("<f4")
    mask = np.uint32(0xFFFFFFFF << (23 - bits) & 0xFFFFFFFF)
    return (values.view("<u4") & mask).view("<f4")


def checkered() -> np.ndarray:
    """Float values that are the same in every cell of 2 x 2 items."""
    y, x = np.indices((30, 18)) // 2
    return (y * 10 + x).astype("<f4")


def noise(nbytes: int) -> np.ndarray:
    """Bytes that nothing compresses."""
    state, made = 12345, bytearray()
    while len(made) < nbytes:
        state = state * 6364136223846793005 + 1442695040888963407 & 2**64 - 1
        made += struct.pack("<I", state >> 32)
    return np.frombuffer(made[:nbytes], np.uint8)


def words(dtype: Any) -> np.ndarray:
    return np.array([f"word {n % 7}{'x' * (n % 3)}" for n in range(60)]).reshape(12, 5).astype(dtype)


def records(dtype: Any) -> np.ndarray:
    made = np.zeros(40, dtype)
    for n, name in enumerate(made.dtype.names or ()):
        field = made[name]
        flat = np.arange(field.size).reshape(field.shape) * (n + 1)
        made[name] = flat.astype(field.dtype) if field.dtype.kind != "S" else flat.astype(str).astype(field.dtype)
    return made


def typed(dtype: Any) -> np.ndarray:
    dtype = np.dtype(dtype)
    n = np.arange(60).reshape(12, 5) - 20
    if dtype.kind in "Mm":
        return (n * 86400).astype("<i8").view(dtype.newbyteorder("<")).astype(dtype)
    if dtype.kind == "V":
        return noise(60 * dtype.itemsize).copy().view(dtype).reshape(12, 5)
    return (n % 2 == 0) if dtype.kind == "b" else (n * (1.5 + 0.5j) if dtype.kind == "c" else abs(n)).astype(dtype)


def nans(dtype: Any) -> np.ndarray:
    return np.full(SHAPE, np.nan, dtype)


# Files of python-blosc2.


PLAIN: dict[str, Any] = {"clevel": 5, "filters": ("shuffle",)}
"""What stock Blosc2 has by default."""


def stock(*, contiguous: bool = True, chunks: Any = CHUNKS, blocks: Any = BLOCKS, **cparams: Any) -> Any:
    def make(path: Path, values: np.ndarray) -> None:
        import blosc2

        options = {"typesize": values.dtype.itemsize, "nthreads": 1, **cparams}
        blosc2.asarray(
            values, chunks=chunks, blocks=blocks, urlpath=str(path), mode="w", contiguous=contiguous, cparams=options
        )

    return make


def codec_and_filters(codec: str, filters: list[str], metas: list[int], split: str = "AUTO_SPLIT", **more: Any) -> Any:
    def make(path: Path, values: np.ndarray) -> None:
        import blosc2

        names = [blosc2.Filter[name] for name in filters]
        padding = 6 - len(names)
        stock(
            codec=blosc2.Codec[codec],
            filters=[blosc2.Filter.NOFILTER] * padding + names,
            filters_meta=[0] * padding + metas,
            splitmode=blosc2.SplitMode[split],
            **more,
        )(path, values)

    return make


def constructed(verb: str, *args: Any, chunks: Any = CHUNKS, blocks: Any = BLOCKS, **options: Any) -> Any:
    def make(path: Path, values: np.ndarray) -> None:
        import blosc2

        keywords = {"dtype": values.dtype, "chunks": chunks, "blocks": blocks, "urlpath": str(path), "mode": "w"}
        getattr(blosc2, verb)(values.shape, *args, **keywords, **options)

    return make


def with_layers(path: Path, values: np.ndarray) -> None:
    import blosc2

    array = blosc2.asarray(
        values,
        chunks=CHUNKS,
        blocks=BLOCKS,
        urlpath=str(path),
        mode="w",
        meta={"first": {"a": [1, 2.5]}, "raw": b"\0\1"},
    )
    layers = array.schunk.vlmeta
    for name, value in ATTRS.items():
        layers[name] = value


def assigned(**options: Any) -> Any:
    """Make an array of zeros first: it keeps the text of a type that values would bring in another form."""

    def make(path: Path, values: np.ndarray) -> None:
        import blosc2

        array = blosc2.zeros(values.shape, dtype=values.dtype, urlpath=str(path), mode="w", **options)
        array[...] = values

    return make


def cells(filter_name: str) -> Any:
    """Filters that know dimensions, on blocks of whole cells."""
    return codec_and_filters("ZSTD", [filter_name], [2], chunks=(16, 10), blocks=(8, 4))


def in_sparse_steps(path: Path, values: np.ndarray) -> None:
    """Make files of chunks that are out of order, missing for zeros, and written again."""
    import blosc2

    array = blosc2.zeros(
        (9, 19), dtype=values.dtype, chunks=CHUNKS, blocks=BLOCKS, urlpath=str(path), mode="w", contiguous=False
    )
    array[:, 10:] = 5
    array.resize(SHAPE)
    array[16:, :10] = 1
    array[16:, :10] = 0
    array[:16, 10:] = values[:16, 10:].copy()


def in_sparse_steps_values() -> np.ndarray:
    values = np.zeros(SHAPE, "<i4")
    values[:16, 10:] = ramp()[:16, 10:]
    return values


ATTRS = {
    "units": "m/s",
    "count": 3,
    "list": [1, None, "x"],
    "map": {"k": True},
    "bytes": b"abc",
    "z": 1 - 2j,
    "pair": (1, 2),
}


def changed(path: Path, values: np.ndarray) -> None:
    """Write in many steps: dead space, chunks out of order, zeros in the middle."""
    import blosc2

    array = blosc2.zeros((9, 19), dtype=values.dtype, chunks=CHUNKS, blocks=BLOCKS, urlpath=str(path), mode="w")
    array[:] = 5
    array.resize(SHAPE)
    for stop in range(31, 0, -6):
        array[:stop, ::] = values[:stop]
    array[...] = values


def full_changed(path: Path, values: np.ndarray) -> None:
    """Special chunks that are partly overwritten."""
    import blosc2

    array = blosc2.full(SHAPE, 7, dtype=values.dtype, chunks=CHUNKS, blocks=BLOCKS, urlpath=str(path), mode="w")
    array[5:9, 3:17] = values[5:9, 3:17].copy()
    array[:, :2] = 0


def sevens() -> np.ndarray:
    values = np.full(SHAPE, 7, "<i4")
    values[5:9, 3:17] = ramp()[5:9, 3:17]
    values[:, :2] = 0
    return values


def caterva(path: Path, values: np.ndarray) -> None:
    """Give a super-chunk the metalayer that came before b2nd."""
    import blosc2

    extents = (("q", 0xD3, SHAPE), ("i", 0xD2, CHUNKS), ("i", 0xD2, BLOCKS))
    content = bytes([0x95, 0, 2])
    for code, marker, shape in extents:
        content += b"\x92" + b"".join(struct.pack(f">B{code}", marker, n) for n in shape)
    placeholder = b"?" * (len(content) - 2)
    extended = [-(-c // b) * b for c, b in zip(CHUNKS, BLOCKS, strict=True)]
    schunk = blosc2.SChunk(
        chunksize=extended[0] * extended[1] * 4,
        urlpath=str(path),
        mode="w",
        meta={"caterva": placeholder},
        cparams={"typesize": 4, "blocksize": BLOCKS[0] * BLOCKS[1] * 4, "nthreads": 1},
    )
    for row in range(0, SHAPE[0], CHUNKS[0]):
        for column in range(0, SHAPE[1], CHUNKS[1]):
            schunk.append_data(_blocks(values[row : row + CHUNKS[0], column : column + CHUNKS[1]], extended))
    del schunk
    packed = b"\xc4" + bytes([len(placeholder)]) + placeholder
    data = path.read_bytes()
    if data.count(packed) != 1:
        raise ValueError("the placeholder is not where it should be")
    path.write_bytes(data.replace(packed, content))


def _blocks(part: np.ndarray, extended: list[int]) -> np.ndarray:
    padded = np.zeros(extended, part.dtype)
    padded[: part.shape[0], : part.shape[1]] = part
    grid = padded.reshape(extended[0] // BLOCKS[0], BLOCKS[0], extended[1] // BLOCKS[1], BLOCKS[1])
    return np.ascontiguousarray(grid.transpose(0, 2, 1, 3)).reshape(-1)


CODECS = ("BLOSCLZ", "LZ4", "LZ4HC", "ZLIB", "ZSTD")
FILTERS: dict[str, tuple[list[str], list[int]]] = {
    "none": (["NOFILTER"], [0]),
    "shuffle": (["SHUFFLE"], [0]),
    "bitshuffle": (["BITSHUFFLE"], [0]),
    "delta": (["DELTA"], [0]),
    "bytedelta": (["SHUFFLE", "BYTEDELTA"], [0, 4]),
    "trunc": (["TRUNC_PREC", "SHUFFLE"], [10, 0]),
}
TYPES = {
    "bool": "?",
    "i1": "i1",
    "u2": "<u2",
    "big-i4": ">i4",
    "u8": "<u8",
    "f2": "<f2",
    "big-f8": ">f8",
    "c8": "<c8",
    "c16": "<c16",
    "days": "<M8[D]",
    "big-ms": ">M8[ms]",
    "seconds": "<m8[s]",
}
RECORDS = {
    "packed": [("x", "<i4"), ("y", ">f8"), ("s", "S3")],
    "aligned": np.dtype([("a", "i1"), ("b", "<f8"), ("c", "S3", (2,))], align=True),
    "nested": [("p", [("x", "<f4"), ("y", "<f4")]), ("n", "<u2", (2, 2))],
}


def _stock_cases() -> dict[str, Case]:
    cases = _cases_of_codecs() | _cases_of_types() | _cases_of_special_chunks()
    cases["noise"] = Case(lambda: noise(600).reshape(30, 20), stock())
    cases["one-block"] = Case(lambda: np.arange(7.0), stock(chunks=(7,), blocks=(7,)))
    cases["sixteen"] = Case(
        lambda: np.arange(2**8, dtype="<i2").reshape((2, 1) * 8),
        stock(chunks=(2, 1) * 6 + (1,) * 4, blocks=(2, 1) * 4 + (1,) * 8),
    )
    cases["sparse"] = Case(ramp, stock(contiguous=False))
    cases["sparse-changed"] = Case(in_sparse_steps_values, in_sparse_steps)
    for codec in CODECS:
        made = codec_and_filters(codec, ["SHUFFLE"], [0], contiguous=False)
        cases[f"sparse-{codec.lower()}"] = Case(ramp, made)
    cases["no-dimensions"] = Case(lambda: np.array(2.5), stock(chunks=(), blocks=()))
    cases["layers"] = Case(ramp, with_layers)
    cases["changed"] = Case(ramp, changed)
    cases["caterva"] = Case(lambda: ramp().view("V4"), caterva)
    return cases


def _cases_of_codecs() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for codec in CODECS:
        for name, (filters, metas) in FILTERS.items():
            values = (lambda: truncated(10)) if name == "trunc" else ramp
            cases[f"{codec.lower()}-{name}"] = Case(values, codec_and_filters(codec, filters, metas))
        for split in ("ALWAYS_SPLIT", "NEVER_SPLIT"):
            cases[f"{codec.lower()}-{split.lower()[:-6]}"] = Case(
                ramp, codec_and_filters(codec, ["SHUFFLE"], [0], split)
            )
    for clevel in (0, 1, 9):
        cases[f"clevel-{clevel}"] = Case(ramp, stock(clevel=clevel))
    cases["many-filters"] = Case(ramp, codec_and_filters("ZSTD", ["BITSHUFFLE", "SHUFFLE"], [0, 2]))
    cases["ndcell"] = Case(ramp, cells("NDCELL"))
    cases["ndmean"] = Case(checkered, cells("NDMEAN"))
    cases["int-trunc"] = Case(lambda: ramp() & ~0xFF, codec_and_filters("LZ4", ["INT_TRUNC", "SHUFFLE"], [24, 0]))
    for codec in ("ZSTD", "LZ4", "LZ4HC"):
        made = codec_and_filters(codec, ["SHUFFLE"], [0], use_dict=True, **LONG)
        cases[f"dict-{codec.lower()}"] = Case(recurring, made)
    return cases


def _cases_of_types() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    small = stock(chunks=(5, 4), blocks=(3, 2))
    for name, dtype in TYPES.items():
        cases[f"type-{name}"] = Case(partial(typed, dtype), small)
    cases["type-V3"] = Case(partial(typed, "V3"), assigned(chunks=(5, 4), blocks=(3, 2)))
    for name, dtype in {"S5": "S5", "U3": "<U3", "big-U9": ">U9", "S300": "S300", "U80": "<U80"}.items():
        cases[f"text-{name}"] = Case(partial(words, dtype), small)
    for name, dtype in RECORDS.items():
        cases[f"record-{name}"] = Case(partial(records, dtype), assigned(chunks=(11,), blocks=(4,)))
    cases["items-are-arrays"] = Case(lambda: np.arange(120, dtype="<f4").reshape(12, 5, 2), items_are_arrays)
    return cases


def _cases_of_special_chunks() -> dict[str, Case]:
    cases = {
        "zeros": Case(partial(np.zeros, SHAPE, "<f8"), constructed("zeros")),
        "zeros-sparse": Case(partial(np.zeros, SHAPE, "<i4"), constructed("zeros", contiguous=False)),
        "uninit": Case(partial(np.zeros, SHAPE, "<f8"), constructed("uninit")),
        "nans-f4": Case(partial(nans, "<f4"), constructed("nans")),
        "nans-f8": Case(partial(nans, "<f8"), constructed("nans")),
        "full": Case(partial(np.full, SHAPE, 2.5), constructed("full", 2.5)),
        "full-zero": Case(partial(np.full, SHAPE, 0.0), constructed("full", 0.0)),
        "full-S300": Case(partial(np.full, SHAPE, b"item", "S300"), constructed("full", b"item".ljust(300, b"\0"))),
        "full-i2": Case(partial(np.full, SHAPE, -300, "<i2"), constructed("full", -300, contiguous=False)),
        "nans-sparse": Case(partial(nans, "<f4"), constructed("nans", contiguous=False)),
        "uninit-sparse": Case(partial(np.zeros, SHAPE, "<i2"), constructed("uninit", contiguous=False)),
        "full-changed": Case(sevens, full_changed),
        "empty-to-grow": Case(partial(np.zeros, (0, 5), "<i4"), constructed("zeros", chunks=(3, 5), blocks=(2, 5))),
    }
    for shape in ((0,), (0, 5), (3, 0)):
        name = "empty-" + "-".join(map(str, shape))
        cases[name] = Case(partial(np.zeros, shape, "<i4"), constructed("zeros", chunks=None, blocks=None))
    return cases


def items_are_arrays(path: Path, values: np.ndarray) -> None:
    import blosc2

    dtype = np.dtype((values.dtype, values.shape[-1:]))
    array = blosc2.zeros(values.shape[:-1], dtype=dtype, chunks=(5, 4), blocks=(5, 4), urlpath=str(path), mode="w")
    # Its own assignment does not know such items.
    for n in range(6):
        part = values[n // 2 * 5 :, n % 2 * 4 :][:5, :4]
        padded = np.zeros((5, 4, 2), "<f4")
        padded[: part.shape[0], : part.shape[1]] = part
        array.schunk.update_data(n, padded.reshape(-1), copy=True)


# Files of b2array.


def ours(**options: Any) -> Any:
    def make(path: Path, values: np.ndarray) -> None:
        import b2array

        b2array.asarray(
            values, url=path, **{"chunks": CHUNKS, "blocks": BLOCKS, "cparams": b2array.CParams(**PLAIN), **options}
        )

    return make


def with_everything(layout: str) -> Any:
    """Fill value, names of dimensions, attributes of both kinds, changes, and dead space."""

    def make(path: Path, values: np.ndarray) -> None:
        import b2array

        array = b2array.create(
            path,
            SHAPE,
            values.dtype,
            chunks=CHUNKS,
            blocks=BLOCKS,
            fill_value=7,
            dims=("y", None),
            attrs=ATTRS,
            layout=layout,
            meta={"first": [1, 2]},
            cparams=b2array.CParams(**PLAIN),
        )
        array[5:9, 3:17] = values[5:9, 3:17]
        array[:, :2] = 0
        array.attrs["a name that is much longer than thirty-one bytes"] = [1, 2, 3]

    return make


def then_stock(path: Path, values: np.ndarray) -> None:
    """Let python-blosc2 change a file of b2array."""
    import blosc2

    with_everything("contiguous")(path, values)
    array = blosc2.open(str(path), mode="a")
    array[:16, :10] = 3
    array.schunk.vlmeta["by"] = "stock"


def sevens_and_threes() -> np.ndarray:
    values = sevens()
    values[:16, :10] = 3
    return values


def _our_cases() -> dict[str, Case]:
    import b2array

    def params(**options: Any) -> dict[str, Any]:
        return {"cparams": b2array.CParams(**PLAIN | options)}

    cases = {
        f"{codec}-{split}": Case(ramp, ours(**params(codec=codec, splitmode=split)))
        for codec in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
        for split in ("auto", "always", "never")
    }
    for name in ("bitshuffle", "delta", "bytedelta"):
        filters = ("shuffle", name) if name == "bytedelta" else (name,)
        cases[name] = Case(ramp, ours(**params(filters=filters), interop=False))
    for codec in ("zstd", "lz4", "lz4hc"):
        made = ours(**params(codec=codec, use_dict=True), interop=False, **LONG)
        cases[f"dict-{codec}"] = Case(recurring, made)
    cases["raw"] = Case(ramp, ours(**params(clevel=0)))
    cases["contiguous"] = Case(sevens, with_everything("contiguous"))
    cases["sparse"] = Case(sevens, with_everything("sparse"))
    cases["then-stock"] = Case(sevens_and_threes, then_stock)
    cases["nan"] = Case(lambda: nans("<f8"), lambda path, values: _full(path, values, np.nan))
    cases["minus-zero"] = Case(lambda: np.full(SHAPE, -0.0), lambda path, values: _full(path, values, -0.0))
    cases["record"] = Case(lambda: records(RECORDS["aligned"]), ours(chunks=(11,), blocks=(4,)))
    cases["text-S300"] = Case(lambda: words("S300"), ours(chunks=(5, 4), blocks=(3, 2)))
    cases["no-dimensions"] = Case(lambda: np.array(2.5), ours(chunks=(), blocks=()))
    cases["empty"] = Case(lambda: np.zeros((0, 5), "<i4"), ours(chunks=(3, 5), blocks=(2, 5)))
    return cases


def _full(path: Path, values: np.ndarray, value: float) -> None:
    import b2array

    cparams = b2array.CParams(**PLAIN)
    b2array.full(values.shape, value, values.dtype, url=path, chunks=CHUNKS, blocks=BLOCKS, cparams=cparams)


# Super-chunks of python-blosc2. What is in their chunks stands in a .npy file of the same name.


def text() -> bytes:
    return b"".join(b"line %d of a text\n" % n for n in range(200))


def appended(*sizes: int) -> Callable[[Path], list[bytes]]:
    def make(path: Path) -> list[bytes]:
        import blosc2

        options = {"typesize": 1, "nthreads": 1}
        schunk = blosc2.SChunk(chunksize=sizes[0], urlpath=str(path), mode="w", cparams=options)
        start = 0
        for size in sizes:
            schunk.append_data(text()[start : start + size])
            start += size
        schunk.vlmeta["note"] = "a text"
        return [schunk.decompress_chunk(n) for n in range(schunk.nchunks)]

    return make


def batches(path: Path) -> list[bytes]:
    import blosc2

    array = blosc2.BatchArray(items_per_block=2, urlpath=str(path), mode="w", cparams={"nthreads": 1})
    array.append(["one", "two" * 50, {"three": 3}, 4.0, [5] * 100])
    array.append([b"six" * 100])
    return [b"".join(array.schunk.get_vlblock(n, i) for i in range(count)) for n, count in enumerate((3, 1))]


def objects(path: Path) -> list[bytes]:
    import blosc2

    array = blosc2.ObjectArray(urlpath=str(path), mode="w", cparams={"nthreads": 1})
    for value in ("one", list(range(300)), {"k": None}):
        array.append(value)
    return [array.schunk.decompress_chunk(n) for n in range(array.schunk.nchunks)]


SCHUNKS: dict[str, Callable[[Path], list[bytes]]] = {
    "short-last": appended(1500, 1500, 400),
    "own-sizes": appended(500, 1500, 300, 500),
    "batches": batches,
    "objects": objects,
}


# Chunks. Those of Blosc1 are read whatever happens to numcodecs; lazy ones point into the files of python-blosc2.


class ChunkCase(NamedTuple):
    """What a chunk holds, and how it is made of that."""

    data: Callable[[], bytes]
    make: Callable[[bytes], bytes]


def longer() -> bytes:
    """Enough for several blocks of every codec of C-Blosc 1, which makes none below 64 KiB for most."""
    return np.tile(ramp().reshape(-1), 60).tobytes()


def blosc1(codec: str, shuffle: int, **options: Any) -> Callable[[bytes], bytes]:
    def make(data: bytes) -> bytes:
        from numcodecs import blosc

        settings = {"typesize": 4, "clevel": 5, "blocksize": 0, **options}
        clevel = settings.pop("clevel")
        made: bytes = blosc.compress(np.frombuffer(data, np.uint8), codec.encode(), clevel, shuffle, **settings)
        return made

    return make


def lazy(name: str, n: int) -> ChunkCase:
    def data() -> bytes:
        import b2array

        with b2array.open_schunk(path_of("stock", name)) as schunk:
            return schunk.decompress_chunk(n)

    def make(data: bytes) -> bytes:
        import blosc2

        array = blosc2.open(str(path_of("stock", name)))
        if array.schunk.decompress_chunk(n) != data:
            raise ValueError("python-blosc2 reads other data")
        return array.schunk.get_lazychunk(n)

    return ChunkCase(data, make)


def special_of_stock(name: str, value: Any = None) -> Callable[[bytes], bytes]:
    def make(data: bytes) -> bytes:
        import blosc2

        schunk = blosc2.SChunk(chunksize=len(data), cparams={"typesize": 8})
        schunk.fill_special(len(data) // 8, blosc2.SpecialValue[name], value=value)
        return schunk.get_chunk(0)

    return make


def vl_pieces() -> list[bytes]:
    return [b"%d some text, and more: %d " % (n, n * n) * 5 for n in range(120)]


def vl_data() -> bytes:
    return b"".join(vl_pieces())


def stock_vl(codec: str, **options: Any) -> Callable[[bytes], bytes]:
    def make(_: bytes) -> bytes:
        import blosc2
        from blosc2 import blosc2_ext

        return blosc2_ext.vlcompress(vl_pieces(), typesize=1, codec=blosc2.Codec[codec], **options)

    return make


def our_vl(_: bytes) -> bytes:
    sys.path.append(str(HERE.parent))
    from chunks import vl_chunk

    return vl_chunk(vl_pieces())


def our_chunk(**options: Any) -> Callable[[bytes], bytes]:
    def make(data: bytes) -> bytes:
        import b2array
        from b2array.codec import encode

        return encode.encode(data, typesize=4, blocksize=960, cparams=b2array.CParams(**PLAIN | options))

    return make


def measurements() -> bytes:
    return b"".join(struct.pack("<3f4B", n, 2 * n, 3 * n, 1, 2, 3, 4) for n in range(8))


def instrumented(data: bytes) -> bytes:
    """Two blocks of four streams with a measurement each, of which the filters must not be undone."""
    streams = b"".join(struct.pack("<i", 16) + data[at : at + 16] for at in range(0, 128, 16))
    header = struct.pack("<4B3i", 5, 1, 0x25, 4, 128, 64, 40 + len(streams))
    header += bytes((0, 0, 0, 0, 3, 1, 1, *bytes(8), 0x80))
    return header + struct.pack("<2i", 40, 40 + len(streams) // 2) + streams


def _chunk_cases() -> dict[str, ChunkCase]:
    cases = {
        f"blosc1-{codec}-{name}": ChunkCase(lambda: ramp().tobytes()[:2336], blosc1(codec, shuffle))
        for codec in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
        for shuffle, name in enumerate(("none", "shuffle", "bitshuffle"))
    }
    cases["blosc1-odd-bitshuffle"] = ChunkCase(lambda: ramp().tobytes(), blosc1("zstd", 2))
    cases["blosc1-raw"] = ChunkCase(lambda: noise(1000).tobytes(), blosc1("lz4", 1, clevel=0))
    cases["blosc1-blocks"] = ChunkCase(longer, blosc1("zstd", 1, blocksize=2**14, clevel=9))
    cases["blosc1-split-blocks"] = ChunkCase(longer, blosc1("lz4hc", 1, clevel=9))
    cases["blosc1-wide"] = ChunkCase(lambda: ramp().tobytes(), blosc1("lz4", 1, typesize=19))
    for name, n in (
        ("zstd-shuffle", 1),
        ("lz4-bitshuffle", 0),
        ("lz4-never", 3),
        ("noise", 0),
        ("dict-zstd", 0),
        ("full", 0),
        ("sparse", 2),
        ("sparse-changed", 1),
    ):
        cases[f"lazy-{name}"] = lazy(name, n)
    specials: tuple[tuple[str, Any, float], ...] = (
        ("ZERO", None, 0.0),
        ("NAN", None, np.nan),
        ("VALUE", 2.5, 2.5),
        ("UNINIT", None, 0.0),
    )
    for special, value, item in specials:
        made = special_of_stock(special, value)
        cases[f"stock-{special.lower()}"] = ChunkCase(lambda item=item: np.full(1000, item).tobytes(), made)
    for codec in ("BLOSCLZ", "LZ4", "LZ4HC", "ZLIB", "ZSTD"):
        cases[f"stock-vl-{codec.lower()}"] = ChunkCase(vl_data, stock_vl(codec))
    for codec in ("LZ4", "ZSTD"):
        cases[f"stock-vl-dict-{codec.lower()}"] = ChunkCase(vl_data, stock_vl(codec, use_dict=True))
    cases["instrumented"] = ChunkCase(measurements, instrumented)
    cases["ours-vl"] = ChunkCase(vl_data, our_vl)
    cases["ours-dict"] = ChunkCase(lambda: recurring().tobytes(), our_chunk(use_dict=True))
    cases["ours-raw"] = ChunkCase(lambda: noise(500).tobytes(), our_chunk())
    cases["ours-value"] = ChunkCase(lambda: b"abcd" * 100, our_chunk())
    cases["ours-zeros"] = ChunkCase(lambda: bytes(400), our_chunk())
    return cases


STOCK = _stock_cases()
OURS = _our_cases()
CHUNK = _chunk_cases()


def path_of(author: str, name: str) -> Path:
    return HERE / author / f"{name}.b2nd"


def chunk_path(name: str) -> Path:
    return HERE / "chunk" / f"{name}.chunk"


def main(names: list[str]) -> None:
    for author, cases in (("stock", STOCK), ("ours", OURS)):
        for name, case in cases.items():
            path = path_of(author, name)
            if _wanted(path, names):
                case.make(path, case.values())
    for name, make in SCHUNKS.items():
        path = path_of("schunk", name)
        if _wanted(path, names):
            np.save(path.with_suffix(".npy"), np.frombuffer(b"".join(make(path)), np.uint8))
    for name, chunk_case in CHUNK.items():
        path = chunk_path(name)
        if _wanted(path, names):
            path.write_bytes(chunk_case.make(chunk_case.data()))
    for lock in HERE.rglob("*.b2lock"):
        lock.unlink()


def _wanted(path: Path, names: list[str]) -> bool:
    path.parent.mkdir(exist_ok=True)
    if path.exists() and f"{path.parent.name}/{path.stem}" not in names:
        return False
    print(path)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
