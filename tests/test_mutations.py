"""Files of b2array with any damage: what is read is what was written, before a repair and after it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array import config
from b2array.errors import B2ArrayError

KINDS = ("contiguous noise", "contiguous smooth", "sparse noise", "sparse smooth")


def values(kind: str) -> np.ndarray:
    if "noise" in kind:
        return np.random.default_rng(0).random((40, 16))
    return np.repeat(np.arange(5.0), 128).reshape(40, 16) + np.arange(16)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, np.ndarray]]:
    """Make files with superseded chunks and indices in them, and a chunk that is not stored any more."""
    made = {}
    for kind in KINDS:
        path, data = tmp_path_factory.mktemp("originals") / "a.b2nd", values(kind)
        options = {"chunks": (8, 16), "blocks": (2, 8), "attrs": {"unit": "K"}, "layout": kind.split()[0]}
        a = b2array.asarray(data, url=path, **options)
        a[:8] = data[:8] = data[:8] + 1
        a[16:24] = data[16:24] = 0
        made[kind] = path, data
    return made


def damage(content: bytearray, draw: st.DataObject, others: list[bytes]) -> bytearray:
    at, size = draw.draw(st.integers(0, len(content))), draw.draw(st.sampled_from((1, 2, 4, 8, 16, 64, 200)))
    what = draw.draw(st.sampled_from(("noise", "zeros", "swap", "cut", "insert", "remove", "bit", "other")))
    if what == "noise":
        content[at : at + size] = draw.draw(st.binary(min_size=size, max_size=size))
    elif what == "zeros":
        content[at : at + size] = bytes(size)
    elif what == "swap":
        other = draw.draw(st.integers(0, len(content)))
        content[at : at + size], content[other : other + size] = content[other : other + size], content[at : at + size]
    elif what == "cut":
        del content[at:]
    elif what == "insert":
        content[at:at] = draw.draw(st.binary(min_size=size, max_size=size))
    elif what == "remove":
        del content[at : at + size]
    elif what == "bit" and at < len(content):
        content[at] ^= 1 << draw.draw(st.integers(0, 7))
    elif what == "other" and others:
        return bytearray(draw.draw(st.sampled_from(others)))
    return content


def check(path: Path, data: np.ndarray) -> None:
    with b2array.open(path) as a:
        assert (a.shape, a.dtype, dict(a.attrs)) == (data.shape, data.dtype, {"unit": "K"})
        for n in range(5):
            try:
                found = a[8 * n : 8 * n + 8]
            except B2ArrayError:
                continue
            np.testing.assert_array_equal(found, data[8 * n : 8 * n + 8])


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_whatever_happens_to_the_bytes_no_value_is_another_one(originals, tmp_path, data):
    kind = data.draw(st.sampled_from(KINDS))
    original, expected = originals[kind]
    path = tmp_path / "a.b2nd"
    for old in tmp_path.iterdir():
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    (shutil.copytree if original.is_dir() else shutil.copy)(original, path)
    files = sorted(file for file in (path.iterdir() if path.is_dir() else [path]) if not file.name.endswith("lock"))
    frames = [file for file in files if not file.name.endswith(".chunk")]
    for _ in range(data.draw(st.integers(1, 3))):
        victim = data.draw(st.sampled_from(files + 4 * frames))
        chunks = [file.read_bytes() for file in files if file not in frames and victim not in frames]
        victim.write_bytes(damage(bytearray(victim.read_bytes()), data, chunks))
    with config.using(cache_bytes=0, threads=1):
        try:
            check(path, expected)
        except (B2ArrayError, FileNotFoundError):
            event("not opened")
        try:
            b2array.repair(path, backup=False)
        except (B2ArrayError, FileNotFoundError):
            event("not repaired")
            return
        check(path, expected)
        event("repaired")
