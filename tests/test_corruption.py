"""Whatever happens to the bytes of a file: reading gives values or an error of ours that says where, at little cost."""

from __future__ import annotations

import random
import re
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import blosc2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lengths import Sampled, examples

import b2array
from b2array import config
from b2array.codec.cparams import CParams
from b2array.errors import B2ArrayError, FormatError, UnsupportedError

SHAPE, CHUNKS, BLOCKS = (24, 20), (12, 10), (6, 5)
KEYS = (..., (slice(3, 20, 2), slice(None)), (5, 5), (slice(11, 13), slice(9, 11)))
MAX_NBYTES = 32 * 2**20
"""Far more than the files hold, far less than damaged fields claim."""


def numbers() -> np.ndarray:
    n = np.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE)
    values = n * 37 + n * n % 61
    values[:6, :10] = 7
    values[12:, :10] = 0
    return values.astype("<i4")


def make(path: Path, kind: str) -> None:
    """Write a small file with chunks that are stored, repeat a value, and are not stored at all."""
    layout = "sparse" if "sparse" in kind else "contiguous"
    if "stock" in kind:
        import blosc2

        there = blosc2.asarray(
            numbers(),
            chunks=CHUNKS,
            blocks=BLOCKS,
            urlpath=str(path),
            contiguous=layout == "contiguous",
            cparams={"typesize": 4, "nthreads": 1, "codec": blosc2.Codec.LZ4},
            meta={"m": {"k": 1}},
        )
        there.schunk.vlmeta["note"] = "a text"
        return
    params = {
        "lz4": CParams("lz4"),
        "zstd": CParams("zstd", splitmode="never"),
        "delta": CParams("zlib", filters=("delta", "bitshuffle")),
        "raw": CParams(clevel=0),
        "blosclz": CParams("blosclz", splitmode="always"),
    }[kind.split(maxsplit=1)[0]]
    b2array.asarray(
        numbers(),
        url=path,
        chunks=CHUNKS,
        blocks=BLOCKS,
        layout=layout,
        cparams=params,
        interop=False,
        attrs={"note": "a text", "list": [1, 2, 3]},
        dims=("y", "x"),
        fill_value=7,
    ).close()


KINDS = ("lz4", "zstd", "delta", "raw", "blosclz", "lz4 sparse", "zstd sparse", "stock", "stock sparse")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("originals")
    for kind in KINDS:
        make(root / f"{kind}.b2nd", kind)
    return {kind: root / f"{kind}.b2nd" for kind in KINDS}


def files(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]


def read_all(path: Path) -> list[np.ndarray]:
    with b2array.open(path) as array:
        found = [np.asarray(array[key]) for key in KEYS]
        dict(array.attrs)
        _ = array.fill_value, array.dims, array.info
    return found


def check_named(where: str, error: B2ArrayError) -> None:
    assert where in str(error), f"{error!r} does not name {where}"


def read_or_refuse(path: Path) -> bool:
    """Read everything, say whether it went well, and check that the refusal names the file."""
    try:
        found = read_all(path)
    except FileNotFoundError:
        return False
    except B2ArrayError as error:
        check_named(path.name, error)
        return False
    # Only shapes and types: without checksums a changed byte may be another value.
    for key, values in zip(KEYS, found, strict=True):
        assert values.ndim == np.asarray(numbers()[key]).ndim
    return True


@pytest.fixture
def bounded() -> Iterator[None]:
    """Check that no damaged size has become memory."""
    b2array.zeros(3)[...]
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MAX_NBYTES
    finally:
        tracemalloc.stop()


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """Damaged shapes may ask for any result, as those of intact files may: bound what a test accepts."""
    with config.using(cache_bytes=0, threads=1):
        yield


def guarded(path: Path) -> bool:
    """As `read_or_refuse`; a damaged shape that makes a large result is as good as a refusal."""
    try:
        with b2array.open(path) as array:
            if array.nbytes > 2**20 or array.nchunks > 1000:
                return False
    except FileNotFoundError:
        return False
    except B2ArrayError as error:
        check_named(path.name, error)
        return False
    try:
        return read_or_refuse(path)
    except AssertionError:
        raise
    except IndexError:
        # The damaged shape is too small for the keys.
        with b2array.open(path) as array:
            assert array.shape != SHAPE
        return False


@pytest.mark.parametrize("kind", KINDS)
def test_intact_files_are_read(kind: str, originals: dict[str, Path]) -> None:
    for key, values in zip(KEYS, read_all(originals[kind]), strict=True):
        np.testing.assert_array_equal(values, numbers()[key])


@pytest.mark.parametrize("kind", KINDS)
def test_files_cut_anywhere_are_refused(
    kind: str, originals: dict[str, Path], tmp_path: Path, bounded: None, sampled: Sampled
) -> None:
    for number, name in enumerate(path.name for path in files(originals[kind])):
        path = tmp_path / f"cut{number}.b2nd"
        (shutil.copytree if originals[kind].is_dir() else shutil.copy)(originals[kind], path)
        victim = path / name if path.is_dir() else path
        content = victim.read_bytes()
        if name == ".b2lock":
            continue
        step = max(1, len(content) // 25)
        for length in sorted({*sampled(range(0, len(content), step), 6), len(content) - 1}):
            victim.write_bytes(content[:length])
            whole = read_or_refuse(path)
            # Our checksums stand behind the chunks of a sparse frame: without them the values are still there.
            if whole:
                assert path.is_dir()
                assert name.endswith(".chunk")
                np.testing.assert_array_equal(b2array.load(path), numbers())


@pytest.mark.parametrize("kind", KINDS)
def test_any_bit_may_flip(
    kind: str,
    originals: dict[str, Path],
    tmp_path: Path,
    bounded: None,
    sampled: Sampled,
) -> None:
    path = tmp_path / "flipped.b2nd"
    (shutil.copytree if originals[kind].is_dir() else shutil.copy)(originals[kind], path)
    rng = random.Random(kind)
    refused = 0
    for victim in files(path):
        if victim.name == ".b2lock":
            continue
        content = victim.read_bytes()
        for at in sampled(sorted(rng.sample(range(len(content)), min(len(content), 140 // len(files(path))))), 16):
            changed = bytearray(content)
            changed[at] ^= 1 << rng.randrange(8)
            victim.write_bytes(changed)
            refused += not guarded(path)
        victim.write_bytes(content)
    assert refused


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_refused_or_read(originals: dict[str, Path], tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    path = tmp_path / "damaged.b2nd"
    for old in tmp_path.iterdir():
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    (shutil.copytree if originals[kind].is_dir() else shutil.copy)(originals[kind], path)
    victim = data.draw(st.sampled_from([file for file in files(path) if file.name != ".b2lock"]))
    content = bytearray(victim.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        what = data.draw(st.sampled_from(("set", "extreme", "insert", "remove", "zeros", "swap")))
        size = data.draw(st.sampled_from((1, 2, 4, 8, 32)))
        if what == "set":
            content[at : at + size] = data.draw(st.binary(min_size=size, max_size=size))
        elif what == "extreme":
            content[at : at + size] = data.draw(st.sampled_from((b"\xff", b"\x7f", b"\x80"))) * size
        elif what == "insert":
            content[at:at] = data.draw(st.binary(min_size=size, max_size=size))
        elif what == "remove":
            del content[at : at + size]
        elif what == "zeros":
            content[at : at + size] = bytes(size)
        else:
            other = data.draw(st.integers(0, len(content)))
            content[at : at + size] = content[other : other + size]
    victim.write_bytes(content)
    guarded(path)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "sparse" in kind])
def test_missing_chunks_are_named(kind: str, originals: dict[str, Path], tmp_path: Path) -> None:
    for name in [file.name for file in files(originals[kind]) if file.suffix == ".chunk"]:
        path = tmp_path / f"{name}.b2nd"
        shutil.copytree(originals[kind], path)
        (path / name).unlink()
        with b2array.open(path) as array, pytest.raises(b2array.errors.ChunkMissingError) as caught:
            array[...]
        assert "chunk" in str(caught.value)
        assert str(caught.value).count(f"{path.name}: ") == 1
        # What does not need it is read.
        with b2array.open_schunk(path) as schunk:
            readable = sum(bool(read_chunk(schunk, n)) for n in range(len(schunk)))
            assert readable == len(schunk) - 1


def read_chunk(schunk: b2array.SChunk, n: int) -> bytes | None:
    try:
        return schunk.decompress_chunk(n)
    except B2ArrayError as error:
        check_named(f"chunk {n} of", error)
        return None


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_chunk_is_named_and_the_others_are_read(
    kind: str, originals: dict[str, Path], tmp_path: Path
) -> None:
    with b2array.open_schunk(originals[kind]) as schunk:
        stored = [
            n for n in range(len(schunk)) if not isinstance(schunk.frame.entry(n), b2array.codec.chunk_header.Special)
        ]
        places = {n: schunk.frame.entry(n) for n in stored}
        header_len, contents = schunk.frame.header_len, [schunk.decompress_chunk(n) for n in range(len(schunk))]
    for n in stored:
        path = tmp_path / f"{n}.b2nd"
        (shutil.copytree if originals[kind].is_dir() else shutil.copy)(originals[kind], path)
        victim = path / f"{places[n]:08X}.chunk" if path.is_dir() else path
        start = 0 if path.is_dir() else header_len + places[n]
        content = bytearray(victim.read_bytes())
        content[start + 4 : start + 12] = b"\xff" * 8  # sizes of chunk and blocks
        victim.write_bytes(content)
        with b2array.open(path) as array, pytest.raises(FormatError, match=f"chunk {n} of .*{path.name}"):
            array[...]
        with b2array.open_schunk(path) as schunk:
            assert [read_chunk(schunk, i) for i in range(len(schunk))] == [
                None if i == n else content for i, content in enumerate(contents)
            ]


@pytest.mark.parametrize(
    "content", [b"", b"\0", b"\x9e\xa8b2frame\0", bytes(1000), b"\xff" * 500, b"PK\3\4" + bytes(300)]
)
def test_other_files_are_refused_by_name(content: bytes, tmp_path: Path, bounded: None) -> None:
    (tmp_path / "other.b2nd").write_bytes(content)
    (tmp_path / "directory.b2nd").mkdir()
    (tmp_path / "directory.b2nd" / "chunks.b2frame").write_bytes(content)
    for name in ("other.b2nd", "directory.b2nd"):
        for verb in (b2array.open, b2array.open_schunk):
            with pytest.raises(FormatError, match=name):
                verb(tmp_path / name)


def test_what_is_not_there_is_a_file_that_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("nothing.b2nd", "empty"):
        with pytest.raises(FileNotFoundError):
            b2array.open(tmp_path / name)


def test_what_is_not_known_here_is_an_error_with_the_name_of_the_file(tmp_path):
    raw = bytearray(blosc2.asarray(np.arange(30)).to_cframe())
    assert raw[0x4C] == 1  # shuffle in the last slot
    raw[0x4C] = 99
    path = tmp_path / "a.b2nd"
    path.write_bytes(raw)
    array = b2array.open(path, "r+")
    assert array[3] == 3
    for use in (
        lambda: array.cparams,
        lambda: array.copy(chunks=(5,)),
        lambda: array.astype("f4"),
        lambda: array.append([1]),
        lambda: array.insert([1], 3),
        lambda: array.delete(3),
        lambda: array.resize(40),
        lambda: array.__setitem__(slice(3, 5), [1, 2]),
    ):
        with pytest.raises(UnsupportedError, match=rf"{re.escape(str(path))}: .*unknown filter id 99"):
            use()
    assert path.read_bytes() == raw
