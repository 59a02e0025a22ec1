"""Damaged bytes in every parser, reading and writing: values, or an error of ours that says where; no hang, no crash.

A long run is ``pytest tests/test_hostile.py --hostile 1000000 -k "chunks or streams"``. Each test prints its seed, and
an error says which input of which seed it is.
"""

from __future__ import annotations

import copy
import faulthandler
import random
import shutil
import struct
import sys
import threading
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, make_dataclass
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

import blosc2
import msgpack
import numcodecs
import numpy as np
import pytest
from chunks import CODECS

import b2array
from b2array import codecs, config
from b2array.array import array_snapshots
from b2array.array.array import array_at
from b2array.bloscpack import blp_header
from b2array.catalog import ledgers, owners
from b2array.catalog.manifest import Manifest, PendingStep, Row
from b2array.codec import cblosc, encode
from b2array.codec.chunk import Context
from b2array.codec.chunk_header import CODEC_FORMATS, CodecId
from b2array.codec.cparams import CParams
from b2array.codec.decode import decode
from b2array.commit import journals
from b2array.commit.handle import Handle
from b2array.errors import B2ArrayError, FormatError, UnsupportedError
from b2array.exchange import hdf5_chunks
from b2array.exchange.hdf5_chunks import Stage
from b2array.exchange.places import find
from b2array.format import attributes, b2nd, dtypes, fingerprint, metalayers, summary
from b2array.format.ledger import DIGEST_NBYTES, Kept, Ledger, pack_state, unpack_state
from b2array.format.state import State
from b2array.format.summary import Record
from b2array.grid import layout
from b2array.store.memory import MemoryStore

VALUES = np.arange(24 * 20, dtype="<i4").reshape(24, 20) ** 2 % 9973
SLOWEST = 120
"""Seconds after which an input counts as one that never ends."""

pytestmark = pytest.mark.timeout(0)  # many inputs take long, one of them never does
Use = Callable[[random.Random, Path], None]


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """Damaged shapes may ask for any result, as those of intact files may."""
    limits = config.Limits(chunk_nbytes=2**22, index_nbytes=2**16, metadata_nbytes=2**20)
    with config.using(threads=1, cache_bytes=0, limits=limits), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def watched() -> Iterator[None]:
    """End the process, and show what every thread does, if the block takes too long."""
    faulthandler.dump_traceback_later(SLOWEST, exit=True)  # those who need longer set it again
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def mutated(rng: random.Random, content: bytes, start: int = 0) -> bytes:
    """Return bytes with some damage from `start` on."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at, size = rng.randrange(start, len(data) + 1), rng.choice((1, 1, 1, 2, 4, 8, 32))
        what = rng.randrange(10)
        if what < 4 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif what == 4:
            data[at : at + size] = rng.randbytes(len(data[at : at + size]))
        elif what == 5:
            data[at : at + size] = rng.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * len(data[at : at + size])
        elif what == 6:
            other = rng.randrange(len(data) + 1)
            data[at : at + size] = data[other : other + len(data[at : at + size])]
        elif what == 7:
            data[at:at] = rng.randbytes(size)
        elif what == 8:
            del data[at : at + size]
        elif rng.random() < 0.3:
            del data[at:]
    return bytes(data)


def check(subject: str, number: int, seed: int, verb: Callable[[], object], place: str = "") -> bool:
    """Call what uses damaged bytes; return whether it was refused."""
    try:
        with np.errstate(all="ignore"):
            verb()
    except (B2ArrayError, FileNotFoundError) as error:
        if place not in str(error):
            pytest.fail(f"{subject} {number} of seed {seed}: {error!r} does not name {place}")
        return True
    except BaseException as error:
        raise AssertionError(f"{subject} {number} of seed {seed}: {error!r}") from error
    return False


# Chunks and streams, on the main thread and on another one.


def each_half(subject: str, seed: int, count: int, one: Callable[[random.Random], object]) -> None:
    """Call `one` with `count` generators, half of the times on the main thread and half of them on another one."""
    found: list[BaseException] = []
    refused = 0

    def work(numbers: range) -> None:
        nonlocal refused
        try:
            for number in numbers:
                if number % 256 == 0:
                    faulthandler.dump_traceback_later(SLOWEST, exit=True)
                rng = random.Random(f"{subject} {seed} {number}")
                refused += check(subject, number, seed, lambda: one(rng))  # noqa: B023 - called at once
        except BaseException as error:  # noqa: BLE001 - raised again by the main thread
            found.append(error)

    with watched():
        work(range(count // 2))
        other = threading.Thread(target=work, args=(range(count // 2, count),))
        other.start()
        other.join()
    if found:
        raise found[0]
    assert 0 < refused < count


def patterns(rng: random.Random, nbytes: int) -> bytes:
    items = rng.choice(
        (
            np.arange(nbytes // 4) * 7 % 9111,
            np.repeat(np.arange(nbytes // 32 + 1) % 50, 8),
            np.array([rng.randrange(2000) for _ in range(nbytes // 4)]),
            (np.arange(nbytes // 4) % 7 == 0) * 3,
        )
    )
    return items.astype("<i4").tobytes()[:nbytes]


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_chunks_are_read_or_refused(codec: str, hostile: int, hostile_seed: int) -> None:
    rng = random.Random(hostile_seed)
    intact = [
        encode.encode(
            patterns(rng, nbytes),
            typesize=typesize,
            blocksize=blocksize,
            cparams=CParams(codec, filters=filters, splitmode=splitmode, use_dict=use_dict),
        )
        for filters in (("shuffle",), ("bitshuffle",), (), ("delta", "shuffle"), ("shuffle", "bytedelta"))
        for splitmode in ("auto", "always", "never")
        for nbytes, blocksize in ((4096, 512), (40000, 8000))
        for typesize in (1, 4)
        for use_dict in {False, codec in ("lz4", "zstd") and (nbytes, typesize, splitmode) == (40000, 4, "auto")}
    ]

    def one(rng: random.Random) -> None:
        # The head is small, and found damaged most of the time.
        b2array.decompress(mutated(rng, rng.choice(intact), rng.choice((0, 32, 32))))

    each_half(f"{codec} chunk", hostile_seed, hostile, one)


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_streams_are_read_or_refused(codec: str, hostile: int, hostile_seed: int) -> None:
    rng, number = random.Random(hostile_seed), CodecId[codec.upper()]
    intact = []
    for nbytes in (200, 1000, 4096, 40000):
        data = np.frombuffer(patterns(rng, nbytes), np.uint8)
        payload = cblosc.encode_stream(number, data, 5)
        if payload is not None:
            intact.append((payload, nbytes))

    def one(rng: random.Random) -> None:
        payload, nbytes = rng.choice(intact)
        payload = mutated(rng, payload)
        if rng.random() < 0.1:
            nbytes += rng.choice((-1, 1, 100))
        if codec == "blosclz" or rng.random() < 0.5:
            cblosc.decode_stream(CODEC_FORMATS[number], payload, nbytes)
        else:
            codecs.decode(number, payload, nbytes)

    each_half(f"{codec} stream", hostile_seed, hostile, one)


# What is written small and parsed alone.


def summarized() -> Record:
    held = owners.load(MemoryStore({"": b2array.asarray(VALUES, attrs={"unit": "K"}, dims=("y", "x")).to_bytes()}))
    record = summary.pack(held.state, held.header)
    assert record is not None
    return record


def kept_states() -> list[bytes]:
    """Return states of a full and of an empty array, packed, without their digests."""
    arrays = [b2array.asarray(VALUES, chunks=(7, 7), attrs={"unit": "K"}), b2array.zeros((0, 3))]
    held = [owners.load(MemoryStore({"": a.to_bytes()})) for a in arrays]
    return [pack_state(each.state, each.header)[:-DIGEST_NBYTES] for each in held]


def digest_of(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_NBYTES).digest()


def unpack_kept_state(data: bytes) -> State:
    return unpack_state(data + digest_of(data), Kept("x", 0.0, generation=bytes(16), digest=digest_of(data)))


def metadata_of_bloscpack(data: bytes) -> object:
    return blp_header.description(blp_header.unpack_metadata(blp_header.MetaHeader.unpack(data), data))


PIPELINE = (Stage(2, (4,)), Stage(32026, ()), Stage(1, (5,)), Stage(3, ()))
"""The filters of an HDF5 dataset: shuffle, Blosc2, deflate and a checksum."""


def image() -> bytes:
    if not find_spec("imagecodecs"):
        return bytes(100)
    import imagecodecs

    return imagecodecs.jpeg2k_encode(np.arange(2000).reshape(40, 50).astype("u1"), level=0, codecformat="j2k")


CELLS = Context(blockshape=(12, 10))


def chunk_of_zfp(codec: int, meta: int) -> bytes:
    """Return a chunk of blocks that ZFP encoded, if it is installed: else one that has no codec at all."""
    values = np.sin(np.arange(24 * 20, dtype="<f8").reshape(4, 12, 10) / 9)
    if not find_spec("zfpy"):
        return encode.encode(values, typesize=8, blocksize=960)
    cparams = CParams(codec, codec_meta=meta)
    return encode.encode(values, typesize=8, blocksize=960, cparams=cparams, blockshape=CELLS.blockshape)


def streams_of_ndlz(edge: int) -> list[bytes]:
    """Return streams of one block of 40 x 50 bytes each."""
    streams = []
    cparams = {"codec": blosc2.Codec.NDLZ, "codec_meta": edge, "filters": [0], "nthreads": 1}
    rows = np.random.default_rng(0).integers(0, 9, (4, 8)).astype("u1")
    for order in (np.arange(40) % 4, np.arange(40) ** 2 % 7 % 4):
        image = np.tile(rows[order], 7)[:, :50]
        chunk = b2array.from_bytes(
            blosc2.asarray(image, chunks=(40, 50), blocks=(40, 50), cparams=cparams).to_cframe()
        ).get_chunk(0)
        (start,) = struct.unpack_from("<i", chunk, 32)
        streams.append(chunk[start + 4 :])
    return streams


def frames_of_hdf5() -> list[bytes]:
    held = b2array.create_schunk(chunksize=VALUES.nbytes, typesize=4)
    held.append_data(VALUES)
    return [b2array.asarray(VALUES).to_bytes(), held.to_bytes()]


def resummed(data: bytes) -> bytes:
    """Put the checksum of HDF5 on what is damaged, most of the time."""
    return data if len(data) < 5 or data[0] & 1 else bytes(numcodecs.Fletcher32().encode(data[:-4]))


SUMMARY = summarized()
START = len(SUMMARY[0])
PARSERS: dict[str, tuple[list[bytes], Callable[[bytes], object]]] = {
    "metalayers": (
        [metalayers.pack((("b2nd", b"1234"), ("x", b"")), 2, uncounted=1).rjust(40, b"\0")],
        lambda data: metalayers.unpack(data, 2),
    ),
    "b2nd": (
        [
            b2nd.pack(layout.Layout((10, 7), (4, 4), (3, 2), dtypes.parse_dtype(text), text))
            for text in ("<f8", "[('x', '<i4'), ('y', '<f8', (2,))]", "|V3", "('<f4', (2,))")
        ],
        lambda data: (b2nd.unpack(data, chunksize=192), b2nd.unpack_caterva(data, 4), b2nd.shape_of(data)),
    ),
    "attribute": (
        [
            attributes.encode_attr(value)
            for value in (
                {"a": [1, 2.5, "x"], "b": (1, None)},
                np.arange(6).reshape(2, 3),
                {1, 2},
                3 + 4j,
                "text",
                np.zeros(2, [("a", "<i4"), ("b", "<f8")]),
                np.array([1, "a", None], object),
            )
        ],
        attributes.decode_attr,
    ),
    "ledger of snapshots": (
        [Ledger((Kept("x", 1e9, "why", b"\x80", bytes(16), (3, 4), 5, 60), Kept("y", 0.0, nbytes=16))).pack()],
        lambda data: [array_snapshots.snapshot_info(entry, 0) for entry in Ledger.unpack(data).entries],
    ),
    "state of a snapshot": (kept_states(), unpack_kept_state),
    "members of a snapshot": (
        [ledgers.pack_members({"a/b": ledgers.MemberState("a/b.b2nd", bytes(16), sparse=True)})[:-DIGEST_NBYTES]],
        lambda data: ledgers.unpack_members(data + digest_of(data), digest_of(data)),
    ),
    "manifest of a group": (
        [
            Manifest(
                {"a/b": Row("a/b.b2nd", "0f" * 16, number=3, next=7), "c": Row("c.b2f", sparse=False)},
                "0123456789abcdef",
                3,
                gone={"d.b2nd": 4},
            ).pack()[:-DIGEST_NBYTES],
            Manifest(
                None,
                "0123",
                7,
                {
                    "a.b2nd": PendingStep("patch", "ab", "cd", b"header"),
                    "b.b2nd": PendingStep("frame", "", "cd", "0123456789abcdef"),
                },
            ).pack()[:-DIGEST_NBYTES],
            Manifest({}, "0123", 7, kept=b"x", retired={"0123456789abcdef": (("x", bytes(16)),)}).pack()[
                :-DIGEST_NBYTES
            ],
        ],
        lambda data: Manifest.unpack(data + digest_of(data)).pack(),
    ),
    "summary of an array": (
        [b"".join(SUMMARY)],
        lambda data: summary.unpack([data[:START], data[START : START + 16], data[START + 16 :]]),
    ),
    "journal of a write": (
        [journals.Journal(3, b"0123456789abcdef", "0123").pack()[:-DIGEST_NBYTES]],
        lambda data: journals.Journal.unpack(data + digest_of(data)),
    ),
    **{
        f"chunk of {name}": ([chunk_of_zfp(codec, meta)], lambda data: decode(data, context=CELLS))
        for name, codec, meta in (("zfp_acc", 33, 253), ("zfp_prec", 34, 9), ("zfp_rate", 35, 30))
    },
    "image of JPEG 2000": (
        [image()],
        lambda data: codecs.decode(39, data, 40 * 50, typesize=1, blockshape=(40, 50)),
    ),
    **{
        f"stream of NDLZ with cells of {edge}": (
            streams_of_ndlz(edge),
            lambda data, edge=edge: codecs.decode(32, data, 2000, meta=edge, typesize=1, blockshape=(40, 50)),
        )
        for edge in (4, 8)
    },
    "planes of JPEG 2000": (
        [image()],
        lambda data: codecs.decode(36, data, 40 * 50 * 4, typesize=4, blockshape=(1, 50, 40)),
    ),
    "frame in HDF5": (frames_of_hdf5(), lambda data: hdf5_chunks.unpack(data, 0, (Stage(32026, ()),), VALUES.nbytes)),
    "pipeline of HDF5": (
        [numcodecs.Fletcher32().encode(zlib.compress(frame)) for frame in frames_of_hdf5()],
        lambda data: hdf5_chunks.unpack(resummed(data), 0, PIPELINE, VALUES.nbytes),
    ),
    "chunk of Blosc 1 in HDF5": (
        [numcodecs.Blosc("lz4").encode(VALUES)],
        lambda data: hdf5_chunks.unpack(data, 0, (Stage(32001, ()),), VALUES.nbytes),
    ),
    "header of a Bloscpack file": (
        [blp_header.FileHeader(nchunks=3, chunk_size=800, last_chunk=400, max_app_chunks=30).pack()],
        blp_header.FileHeader.unpack,
    ),
    "metadata of a Bloscpack file": (
        [blp_header.pack_metadata({"dtype": "'<i4'", "shape": [9, 2], "order": "C", "container": "numpy"}, checksum=0)],
        metadata_of_bloscpack,
    ),
}


@pytest.mark.parametrize("parser", PARSERS)
def test_damaged_metadata_are_read_or_refused(parser: str, hostile: int, hostile_seed: int) -> None:
    intact, parse = PARSERS[parser]
    each_half(parser, hostile_seed, hostile, lambda rng: parse(mutated(rng, rng.choice(intact))))


# Files.


@dataclass(frozen=True)
class Subject:
    """A file or directory, and what may be done with it when it is damaged."""

    make: Callable[[Path], None]
    uses: tuple[Use, ...]
    sealed: bool = False
    """Whether a fingerprint is put on the damage, so that it gets through to the parsers behind."""


def our_array(layout: str, codec: str = "lz4") -> Callable[[Path], None]:
    def make(path: Path) -> None:
        cparams, values = CParams(codec), VALUES
        if codec == "zlib":
            cparams, values = (
                CParams(codec, filters=("trunc_prec", "shuffle"), filters_meta=(10,)),
                VALUES.astype("<f4"),
            )
        a = b2array.asarray(
            values,
            url=path,
            chunks=(12, 10),
            blocks=(6, 5),
            layout=layout,
            attrs={"unit": "K", "list": [1, 2]},
            dims=("y", "x"),
            cparams=cparams,
        )
        a[:12] = a[:12] + 1
        a[12:, :10] = 0
        a.close()

    return make


def stock_array(*, contiguous: bool) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        a = blosc2.asarray(
            VALUES,
            chunks=(12, 10),
            blocks=(6, 5),
            urlpath=str(path),
            contiguous=contiguous,
            meta={"m": {"k": 1}},
            cparams={"typesize": 4, "nthreads": 1, "codec": blosc2.Codec.LZ4},
        )
        a.schunk.vlmeta["note"] = "a text"

    return make


def make_schunk(path: Path) -> None:
    with b2array.create_schunk(path, chunksize=0, typesize=4, meta={"m": [1, 2]}) as s:
        for n in range(1, 5):
            s.append_data(VALUES[:n])
        s.vlmeta["v"] = {"a": 1}


def read_array(rng: random.Random, path: Path) -> None:
    with array_at(path) as a:
        if a.nbytes > 2**20 or a.nchunks > 1000:
            return
        a[...], str(a.info), dict(a.attrs), a.fill_value, a.dims, dict(a.meta), a.cparams
        if a.size:
            a[tuple(rng.randrange(n) for n in a.shape)]


def write_array(rng: random.Random, path: Path) -> None:
    with array_at(path, "r+") as a:
        if a.nbytes > 2**20 or a.nchunks > 1000 or a.ndim != 2:
            return
        for what in rng.sample(range(7), 2):
            rows, columns = a.shape
            if what == 0 and a.size:
                a[rng.randrange(rows)] = np.zeros((), a.dtype)
            elif what == 1 and rows < 100 and columns < 100:
                a.resize((rows + 3, columns + 5))
            elif what == 2:
                a.resize((rows // 2, columns))
            elif what == 3 and columns < 1000:
                a.append(np.ones((1, columns)).astype(a.dtype))
            elif what == 4:
                a.attrs["new"] = [1, "x"]
            elif what == 5:
                dict(a.attrs)
                for name in list(a.attrs)[:1]:
                    del a.attrs[name]
            elif what == 6 and a.size:
                with a.transaction():
                    a[0, 0] = np.zeros((), a.dtype)
                    a[rows - 1] = np.zeros((), a.dtype)


def write_schunk(rng: random.Random, path: Path) -> None:
    with b2array.open_schunk(path, "r+") as s:
        if len(s) > 1000:
            return
        for what in rng.sample(range(6), 2):
            if what == 0 and len(s):
                s.delete_chunk(rng.randrange(len(s)))
            elif what == 1 and 0 < s.chunksize < 2**16:
                s.append_data(bytes(s.chunksize))
            elif what == 2 and len(s):
                s.update_chunk(0, s.get_chunk(len(s) - 1))
            elif what == 3:
                s.vlmeta["w"] = [1, "x"]
            elif what == 4 and len(s):
                s.insert_chunk(0, s.get_chunk(0))
            elif what == 5:
                s.reorder(list(range(len(s)))[::-1])


def read_schunk(rng: random.Random, path: Path) -> None:
    with b2array.open_schunk(path) as s:
        if len(s) > 1000:
            return
        dict(s.meta), dict(s.vlmeta), repr(s)
        for n in range(len(s)):
            s.decompress_chunk(n)
            s.lazy_chunk(n)
        s.get_slice(0, min(100, s.nbytes // max(1, s.typesize)))


def look_after(rng: random.Random, path: Path) -> None:
    verb = rng.choice(
        (
            lambda: b2array.verify(path, deep=rng.random() < 0.7),
            lambda: b2array.repair(path, dry_run=rng.random() < 0.5, backup=rng.random() < 0.5),
            lambda: b2array.repair(path, trust_order=True),
            lambda: b2array.vacuum(path, grace="0s", dry_run=rng.random() < 0.5),
            lambda: b2array.repack(path),
        )
    )
    verb()


def copy_array(rng: random.Random, path: Path) -> None:
    with array_at(path) as a:
        if a.nbytes > 2**20 or a.nchunks > 1000:
            return
        a.copy(**rng.choice(({}, {"chunks": (3,) * a.ndim}, {"cparams": CParams("zstd")})))
        a.to_bytes()


FRAME_USES = (read_array, write_array, write_array, read_schunk, write_schunk, look_after, look_after, copy_array)


def make_group(path: Path) -> None:
    group = b2array.open_group(path, "w")
    group.create("air/temperature", data=VALUES, chunks=(12, 10), blocks=(6, 5))
    group.create("air/pressure", data=VALUES[0])
    group.attrs["place"] = "roof"
    with group.transaction() as joint:
        joint["air/pressure"][0] = 7


def make_store(path: Path) -> None:
    """Write a directory as python-blosc2 does, with small members embedded in a frame."""
    with blosc2.TreeStore(str(path), mode="w", threshold=1000) as store:
        store["/a"] = VALUES
        store["/b/c"] = np.arange(10)
        store.vlmeta["place"] = "roof"


def make_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.b2nd", b2array.asarray(VALUES).to_bytes())
        archive.writestr("b/c.b2nd", b2array.asarray(VALUES[0]).to_bytes())
        archive.comment = b"comment"


def make_embedding(path: Path) -> None:
    with blosc2.EmbedStore(str(path), mode="w") as store:
        store["/a"] = VALUES
        store["/b/c"] = np.arange(10)


def make_cache(path: Path) -> None:
    source = blosc2.asarray(VALUES, chunks=(12, 10), blocks=(6, 5), urlpath=str(path) + ".source", mode="w")
    blosc2.Proxy(source, urlpath=str(path), mode="w").fetch()


def make_objects(path: Path) -> None:
    held = blosc2.BatchArray(urlpath=str(path), mode="w", items_per_block=3)
    for n in range(1, 5):
        held.append([{"a": n, "b": [1.5, None, b"x"]}, "text", *range(n)])


def read_objects(rng: random.Random, path: Path) -> None:
    with b2array.open(path) as items:
        if isinstance(items, b2array.Items) and len(items) < 10_000:
            _ = list(items), repr(items)


def make_table(path: Path) -> None:
    fields = [("n", int, blosc2.field(blosc2.int32(nullable=True))), ("s", str, blosc2.field(blosc2.utf8()))]
    fields += [("w", str, blosc2.field(blosc2.dictionary())), ("l", str, blosc2.field(blosc2.vlstring()))]
    table = blosc2.CTable(make_dataclass("Row", fields), urlpath=str(path), mode="w")
    for n in range(8):
        table.append((n if n % 3 else None, f"text {n}", ("red", "green")[n % 2], f"line {n}"))
    table.delete([2])
    table.close()


def read_table(rng: random.Random, path: Path) -> None:
    table = b2array.open(path)
    if isinstance(table, b2array.Table):
        _ = repr(table), [table[name] for name in table], table.to_records()


def read_group(rng: random.Random, path: Path) -> None:
    group = b2array.open_group(path)
    list(group)
    for name in ("air/temperature", "air/pressure", "a", "b/c"):
        if name in group:
            a = group[name]
            if isinstance(a, b2array.NDArray) and a.nbytes < 2**20 and a.nchunks < 1000:
                a[...], dict(a.attrs)
    dict(group.attrs), repr(group), group._repr_html_()


def write_group(rng: random.Random, path: Path) -> None:
    group = b2array.open_group(path, rng.choice(("r+", "a")))
    what = rng.randrange(5)
    if what == 0:
        with group.transaction() as joint:
            for name in ("air/pressure", "b/c"):
                if name in joint and isinstance(joint[name], b2array.NDArray) and joint[name].shape == (10,):
                    joint[name][0] = 3
            joint.attrs["x"] = 1
            joint.create("new", data=[1, 2])
    elif what == 1:
        group.create("fresh/one", data=[1, 2, 3])
        group["fresh/one"][0] = 5
    elif what == 2:
        group.attrs["x"] = [1]
    elif what == 3:
        for name in ("air/temperature", "a", "b/c"):
            if name in group:
                del group[name]
    else:
        with group.transaction() as joint:
            for name in ("air/pressure", "b"):
                if name in joint:
                    del joint[name]


def make_bloscpack(path: Path) -> None:
    b2array.bloscpack.pack(VALUES, path, chunk_size=400, metadata={"note": "x"} if path.stem == "m" else None)


def use_bloscpack(rng: random.Random, path: Path) -> None:
    what = rng.randrange(3)
    if what == 0:
        b2array.bloscpack.unpack(path)
    elif what == 1:
        with b2array.bloscpack.open(path) as held:
            _ = held.metadata, repr(held)
            for n in range(min(held.nchunks, 50)):
                held.get_chunk(n)
    else:
        b2array.bloscpack.append(path, VALUES[:2])
        b2array.bloscpack.unpack(path)


def make_netcdf3(path: Path) -> None:
    from scipy.io import netcdf_file

    with netcdf_file(path, "w", version=2) as file:
        file.createDimension("t", None)
        file.createDimension("x", 20)
        fixed = file.createVariable("fixed", "i4", ("x",))
        fixed[:] = VALUES[0]
        fixed.units, fixed.valid_range = "K", np.array([0, 1], "i2")
        file.createVariable("records", "f4", ("t", "x"))[:5] = VALUES[:5]
        file.createVariable("other", "i2", ("t",))[:5] = range(5)
        file.title = "a title"


def read_netcdf3(rng: random.Random, path: Path) -> None:
    kind, url = find(path, None, None, exists=True)
    with kind.tree(url, None) as tree:
        for name in tree.names:
            source = tree.open(name)
            if source.nbytes < 2**20:
                source.read((...,)), dict(source.attrs), source.fill
        _ = {name: dict(attrs()) for name, attrs in tree.attrs.items()}


FILES = {
    "contiguous": Subject(our_array("contiguous"), FRAME_USES),
    "contiguous, sealed": Subject(our_array("contiguous"), FRAME_USES, sealed=True),
    "truncated floats, sealed": Subject(our_array("contiguous", "zlib"), FRAME_USES, sealed=True),
    "sparse": Subject(our_array("sparse"), FRAME_USES),
    "sparse, sealed": Subject(our_array("sparse", "zstd"), FRAME_USES, sealed=True),
    "stock": Subject(stock_array(contiguous=True), FRAME_USES),
    "stock sparse": Subject(stock_array(contiguous=False), FRAME_USES),
    "super-chunk": Subject(make_schunk, FRAME_USES),
    "super-chunk, sealed": Subject(make_schunk, FRAME_USES, sealed=True),
    "group": Subject(make_group, (read_group, write_group, write_group)),
    "group, sealed": Subject(make_group, (read_group, write_group, write_group), sealed=True),
    "store": Subject(make_store, (read_group, write_group, write_group)),
    "archive": Subject(make_archive, (read_group,)),
    "embedding": Subject(make_embedding, (read_group,)),
    "cache": Subject(make_cache, (read_array, read_schunk)),
    "objects": Subject(make_objects, (read_objects,)),
    "table": Subject(make_table, (read_table,)),
    "bloscpack": Subject(make_bloscpack, (use_bloscpack,)),
    **({"netCDF-3": Subject(make_netcdf3, (read_netcdf3,))} if find_spec("scipy") else {}),
}
SUFFIX = {
    "group": ".b2d",
    "group, sealed": ".b2d",
    "store": ".b2d",
    "archive": ".b2z",
    "bloscpack": ".blp",
    "netCDF-3": ".nc",
    "embedding": ".b2e",
    "objects": ".b2b",
    "table": ".b2d",
}


def resealed(content: bytes) -> bytes:
    """Put the fingerprint on a frame that its header, index and trailer have now."""
    if content[2:9] != b"b2frame" or len(content) < 120:
        return content
    header_len = struct.unpack_from(">i", content, 0x0B)[0]
    nbytes, cbytes = struct.unpack_from(">q", content, 0x1E)[0], struct.unpack_from(">q", content, 0x27)[0]
    start = header_len + (cbytes if nbytes and not content[0x1A] else 0)
    if not 87 <= header_len <= start <= len(content) - 25:
        return content
    return content[:-16] + fingerprint.fingerprint(content[:header_len], content[start:])


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_read_and_written_or_refused(
    name: str, hostile: int, hostile_seed: int, tmp_path: Path
) -> None:
    subject = FILES[name]
    original = tmp_path / f"original{SUFFIX.get(name, '.b2nd')}"
    subject.make(original)
    victims = sorted(path for path in original.rglob("*") if path.is_file()) if original.is_dir() else [original]
    victims = [path for path in victims if path.suffix != ".b2lock"]
    path = tmp_path / f"damaged{original.suffix}"
    refused = 0
    with watched():
        for number in range(hostile // 4):
            faulthandler.dump_traceback_later(SLOWEST, exit=True)
            rng = random.Random(f"{name} {hostile_seed} {number}")
            victim = rng.choice(victims)
            content = victim.read_bytes()
            if not content:
                continue
            damaged = damage(rng, name, content)
            remove(tmp_path, path)
            if original.is_dir():
                shutil.copytree(original, path)
            target = path / victim.relative_to(original) if original.is_dir() else path
            target.write_bytes(resealed(damaged) if subject.sealed else damaged)
            use = rng.choice(subject.uses)
            # An embedded member is in memory, and says so.
            place = "" if name in ("store", "embedding") else path.name
            refused += check(f"{name} ({use.__name__})", number, hostile_seed, lambda: use(rng, path), place)  # noqa: B023
    assert refused


def damage(rng: random.Random, name: str, content: bytes) -> bytes:
    """Damage what is parsed more often than what is decoded."""
    if name == "archive" and rng.random() < 0.8:
        return mutated(rng, content, content.rindex(b"PK\1\2", 0, content.rindex(b"PK\1\2")))
    if name in ("store", "embedding") and b"estore_metadata" in content and rng.random() < 0.5:
        return odd_notes(rng, content)
    if content[2:9] == b"b2frame":
        where = rng.randrange(3)
        if where == 0:
            header_len = struct.unpack_from(">i", content, 0x0B)[0]
            return (
                one_field(rng, content)
                if rng.random() < 0.5
                else mutated(rng, content[:header_len]) + content[header_len:]
            )
        if where == 1:
            return mutated(rng, content, max(0, len(content) - 400))
    return mutated(rng, content)


ODD = (
    0, -1, 2**63, 1.5, None, "x", b"x", [], {}, {"/a": 1}, {1: 2}, [[1]], True, msgpack.ExtType(42, b"x"),
    {"offset": 0, "length": 10},
    {"offset": -1, "length": 2**62}, {"urlbase": 1}, {"urlbase": "http://x", "path": 3}, "\ud800",
)  # fmt: skip


def odd_notes(rng: random.Random, content: bytes) -> bytes:
    """Change what a store notes of its embedded members."""
    held = b2array.SChunk(Handle(owners.load(MemoryStore({"": content})), "r+"))
    # Changes inside an attribute are refused.
    notes, odd = copy.deepcopy(held.vlmeta["estore_metadata"]), rng.choice(ODD)
    what = rng.randrange(4)
    if what == 0:
        notes = odd
    elif what == 1:
        notes[rng.choice(("embed_map", "current_offset", "new", 3))] = odd
    else:
        notes["embed_map"][rng.choice((*notes["embed_map"], "/new", "b", "/../b", 3, b"/a"))] = odd
    packed = msgpack.packb(notes, unicode_errors="surrogatepass")
    for attempt in held._handle.attempts():
        with attempt as draft:
            draft.set_attr("estore_metadata", packed)
    return held.to_bytes()


FIELDS = {
    0x0B: ">i",
    0x10: ">q",
    0x19: "B",
    0x1A: "B",
    0x1B: "B",
    0x1C: "B",
    0x1E: ">q",
    0x27: ">q",
    0x30: ">i",
    0x35: ">i",
    0x3A: ">i",
    0x3F: ">h",
    0x42: ">h",
    0x47: "6B",
    0x4D: "B",
    0x4E: "B",
    0x4F: "6B",
}


def one_field(rng: random.Random, content: bytes) -> bytes:
    """Change the value of a field of a frame's header."""
    at, form = rng.choice(list(FIELDS.items()))
    old = struct.unpack_from(form, content, at)
    most = 2 ** (8 * struct.calcsize(form) // len(old) - (form[0] == ">")) - 1
    new = [
        min(most, rng.choice((0, 1, 2, abs(value) + 1, 2 * abs(value), value & 0xFE, most, rng.randrange(most))))
        for value in old
    ]
    data = bytearray(content)
    struct.pack_into(form, data, at, *new)
    return bytes(data)


def remove(root: Path, path: Path) -> None:
    for old in root.iterdir():
        if old.name.startswith(path.stem):
            shutil.rmtree(old) if old.is_dir() else old.unlink()


# What was found so.


def test_a_nameless_file_in_an_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nameless.b2z"
    make_archive(path)
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\1\2")
    nbytes = struct.unpack_from("<H", content, at + 28)[0]
    struct.pack_into("<2H", content, at + 28, 0, nbytes)  # what was its name is its extra field
    content[at + 46 : at + 46 + nbytes] = struct.pack("<2H", 0x7777, nbytes - 4) + bytes(nbytes - 4)
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"nameless\.b2z: expected relative paths"):
        list(b2array.open_group(path))


def test_filter_parameters_of_a_frame_that_cannot_be_are_named_when_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    our_array("contiguous", "zlib")(path)
    content = bytearray(path.read_bytes())
    content[0x53] = 99  # the fifth of six parameters
    path.write_bytes(resealed(bytes(content)))
    with b2array.open(path, "r+") as a, pytest.raises(UnsupportedError, match=r"a\.b2nd.*trunc_prec keeps 1 to 23"):
        a[0] = 1
    with b2array.open_schunk(path, "r+") as s, pytest.raises(UnsupportedError, match=r"a\.b2nd.*trunc_prec keeps"):
        s.append_data(bytes(s.chunksize))
    with pytest.raises(ValueError, match="trunc_prec needs floats"):
        b2array.zeros(3, dtype="i2", cparams=CParams(filters=("trunc_prec",), filters_meta=(3,)))


def test_a_member_with_an_attribute_whose_name_is_not_text_has_no_summary(tmp_path: Path) -> None:
    path = tmp_path / "a.b2d"
    group = b2array.open_group(path, "w")
    group.create("a", data=VALUES, attrs={"unit": "K"})
    member = path / "a.b2nd"
    content = member.read_bytes()
    assert content.count(b"\xa4unit") == 1
    member.write_bytes(resealed(content.replace(b"\xa4unit", b"\xa4\xc3nit")))
    with b2array.open_group(path, "r+").transaction() as joint:
        joint["a"][0] = 7
    found = b2array.open_group(path)["a"]
    assert (found[0] == 7).all()
    assert dict(found.attrs) == {"\udcc3nit": "K"}


def test_special_offsets_without_a_common_size_of_chunks_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    our_array("contiguous")(path)
    content = bytearray(path.read_bytes())
    struct.pack_into(">i", content, 0x3A, 0)
    path.write_bytes(resealed(bytes(content)))
    with pytest.raises(FormatError, match=r"a\.b2nd: expected no special offsets"):
        b2array.repack(path)


def test_blocks_that_cut_items_are_read_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a.b2frame"
    with b2array.create_schunk(path, chunksize=80, typesize=4) as s:
        s.append_data(VALUES[0])
    content = bytearray(path.read_bytes())
    struct.pack_into(">i", content, 0x35, 6)
    path.write_bytes(resealed(bytes(content)))
    with b2array.open_schunk(path, "r+") as s:
        assert (s.blocksize, s.decompress_chunk(0)) == (6, VALUES[0].tobytes())
        with pytest.raises(UnsupportedError, match=r"a\.b2frame: blocks of 6 bytes and items of 4"):
            s.append_data(VALUES[1])


def test_a_number_without_end_in_the_metadata_of_a_bloscpack_file_is_refused() -> None:
    most = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        section = blp_header.pack_metadata(10**most)
    finally:
        sys.set_int_max_str_digits(most)
    with pytest.raises(FormatError, match="expected metadata in JSON"):
        metadata_of_bloscpack(section)


def test_a_repair_that_finds_no_chunk_of_unknown_sizes_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.b2frame"
    make_schunk(path)
    content = path.read_bytes()
    header_len = struct.unpack_from(">i", content, 0x0B)[0]
    path.write_bytes(content[:header_len] + bytes(len(content) - header_len))
    with pytest.raises(FormatError, match=r"a\.b2frame: expected chunks of 800 bytes, found none"):
        b2array.repair(path, trust_order=True)


def test_a_repair_of_a_file_that_says_it_is_a_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    stock_array(contiguous=True)(path)
    content = bytearray(path.read_bytes())
    content[0x1A] = 1
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"a\.b2nd: expected the frame of a file, found a sparse one"):
        b2array.repair(path)


def test_a_repair_that_cannot_read_the_header_says_of_what(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    stock_array(contiguous=True)(path)
    path.write_bytes(path.read_bytes().replace(b"b2frame", b"b3frame", 1))
    with pytest.raises(FormatError, match=r"a\.b2nd: expected"):
        b2array.repair(path)


def test_a_commit_names_the_file_of_another_chunk_that_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    stock_array(contiguous=False)(path)
    (path / "00000003.chunk").write_bytes(b"xx")
    with b2array.open(path, "r+") as a, pytest.raises(FormatError, match=r"a\.b2nd: 00000003.chunk: expected"):
        a[0] = 1


def test_notes_of_embedded_members_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.b2d"
    make_store(path)
    held = b2array.open_schunk(path / "embed.b2e", "r+")
    packed = msgpack.packb({**held.vlmeta["estore_metadata"], 3: 4})
    for attempt in held._handle.attempts():
        with attempt as draft:
            draft.set_attr("estore_metadata", packed)
    group = b2array.open_group(path, "r+")
    with pytest.raises(FormatError, match=r"a\.b2d.*embed\.b2e: expected notes of embedded"):
        del group["b/c"]


def test_a_shape_that_a_bloscpack_file_cannot_hold_takes_no_memory(tmp_path: Path) -> None:
    about = {"dtype": "'<i4'", "shape": [2**40, 2**40], "order": "C", "container": "numpy"}
    b2array.bloscpack.pack(bytes(40), tmp_path / "a.blp", metadata=about)
    with b2array.bloscpack.open(tmp_path / "a.blp") as held, pytest.raises(FormatError, match=r"a\.blp: expected"):
        held[2:5]
