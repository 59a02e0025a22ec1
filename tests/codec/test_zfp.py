"""ZFP: the same values as C-Blosc2, in both directions, and bounds that hold."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array import CParams
from b2array.codec import codecs, zfp
from b2array.errors import FormatError, UnsupportedError

pytest.importorskip("zfpy")

SHAPES = {(300,): (70,), (40, 50): (9, 8), (13, 17, 19): (5, 4, 6), (9, 10, 11, 12): (4, 5, 6, 7)}
MODES = [(33, 0), (33, 252), (33, 253), (34, 0), (34, 10), (35, 1), (35, 25), (35, 60)]
"""Blocks that get smaller: C-Blosc2 writes beyond its memory where they would not."""


def smooth(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    axes = np.meshgrid(*[np.linspace(0, 3, n) for n in shape], indexing="ij")
    noise = np.random.default_rng(0).normal(size=shape) * 1e-3
    return (sum(np.sin(3 * x + i) for i, x in enumerate(axes)) + noise).astype(dtype)


def stock(x: np.ndarray, codec: int, meta: int, **more: Any) -> Any:
    cparams = {"codec": blosc2.Codec(codec), "codec_meta": meta, "filters": [0], "nthreads": 1}
    return blosc2.asarray(x, cparams=cparams, **more)


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
@pytest.mark.parametrize(("codec", "meta"), MODES)
@pytest.mark.parametrize("shape", SHAPES, ids=len)
def test_arrays_of_python_blosc2_are_read_and_written_with_the_same_values(
    shape: tuple[int, ...], codec: int, meta: int, dtype: str
) -> None:
    x = smooth(shape, dtype)
    for more in ({}, {"chunks": tuple(n // 2 + 1 for n in shape), "blocks": SHAPES[shape]}):
        theirs = stock(x, codec, meta, **more)
        expected = theirs[...]
        read = b2array.from_bytes(theirs.to_cframe())
        np.testing.assert_array_equal(read[...], expected)
        assert (read.cparams.codec_id, read.cparams.codec_meta, read.cparams.filters) == (codec, meta, ())
        how = CParams(codec, codec_meta=meta)
        if (codec, meta) == (35, 1) and len(shape) < 3:
            with pytest.raises(UnsupportedError, match="to so few percent"):
                b2array.asarray(x, chunks=theirs.chunks, blocks=theirs.blocks, cparams=how)
            continue
        written = b2array.asarray(x, chunks=theirs.chunks, blocks=theirs.blocks, cparams=how)
        np.testing.assert_array_equal(blosc2.ndarray_from_cframe(written.to_bytes())[...], written[...])
        if len(expected[expected != x]) and written.cbytes < x.nbytes:
            np.testing.assert_array_equal(written[...], expected)


@pytest.mark.parametrize(("codec", "meta"), [(33, 200), (34, 60), (35, 100)])
@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_blocks_that_do_not_get_smaller_are_stored_as_they_are(codec: int, meta: int, dtype: str) -> None:
    x = np.random.default_rng(0).normal(size=(50, 30)).astype(dtype)
    x[:, 20:] = 1
    a = b2array.asarray(x, chunks=(20, 30), blocks=(10, 10), cparams=CParams(codec, codec_meta=meta))
    np.testing.assert_array_equal(a[...], x)
    np.testing.assert_array_equal(blosc2.ndarray_from_cframe(a.to_bytes())[...], x)


@settings(max_examples=examples(60), deadline=None)
@given(
    shape=st.sampled_from([(64,), (200,), (8, 9), (30, 17), (5, 4, 6), (4, 4, 5, 4)]),
    dtype=st.sampled_from(["<f4", "<f8"]),
    tolerance=st.floats(1e-12, 1e6),
    scale=st.floats(-30, 30),
    kind=st.sampled_from(["noise", "smooth", "steps", "holes"]),
    seed=st.integers(0, 2**32),
)
def test_no_item_is_further_away_than_the_tolerance(shape, dtype, tolerance, scale, kind, seed) -> None:
    rng = np.random.default_rng(seed)
    x = smooth(shape, "f8") if kind == "smooth" else rng.normal(size=shape)
    if kind == "steps":
        # Not larger than the noise, which is in the range of float32 in every scale.
        x = np.where(x > 1, x, x * 1e-9)
    x = (x * 10.0**scale).astype(dtype)
    if kind == "holes":
        x[rng.random(shape) > 0.9] = rng.choice([np.nan, np.inf, -np.inf])
    a = b2array.asarray(x, cparams=CParams("zfp", tolerance=tolerance))
    found = a[...]
    finite = np.isfinite(x)
    np.testing.assert_array_equal(found[~finite], x[~finite])
    errors = np.abs(found[finite].astype("f8") - x[finite].astype("f8"))
    assert (errors <= tolerance).all()
    np.testing.assert_array_equal(blosc2.ndarray_from_cframe(a.to_bytes())[...], found)


def test_a_tolerance_is_the_exponent_of_the_field() -> None:
    assert CParams("zfp", tolerance=0.0099) == CParams("zfp_acc", codec_meta=-3) == CParams(33, codec_meta=253)
    assert CParams("zfp_acc", codec_meta=2).tolerance == 100.0
    assert CParams("zfp", tolerance=1e-5).codec_meta == 251
    assert CParams("zfp_rate", codec_meta=30).filters == ()
    assert CParams("zfp", tolerance=1, filters="auto").filters == ()
    assert not CParams("zfp", tolerance=1).is_lossy
    assert CParams("zfp", tolerance=1).allows_errors
    assert b2array.asarray(np.zeros(64), cparams={"codec": "zfp", "tolerance": 0.5}).info["errors"] == "tolerance 0.1"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"codec": "zfp"}, "'zfp' needs a tolerance"),
        ({"codec": "lz4", "tolerance": 0.1}, "a tolerance is for the codec 'zfp', not for 'lz4'"),
        ({"codec": "zfp", "tolerance": 0}, "tolerance must be a finite number above 0, not 0"),
        ({"codec": "zfp", "tolerance": 1e-200}, "tolerance must be 1e-128 to 1e127"),
        ({"codec": "zfp", "tolerance": 1, "filters": ("bitshuffle",)}, "without filters"),
        ({"codec": "zfp", "tolerance": 1, "splitmode": "always"}, "without a split"),
        ({"codec": "zfp", "tolerance": 1, "use_dict": True}, "dictionaries need"),
        ({"codec": "zip"}, "there are blosclz, .*, zfp_acc, zfp_prec, zfp_rate"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        CParams(**given)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (np.zeros((20, 20), "i4"), "float32 or float64 in little endian, not <i4"),
        (np.zeros((20, 20), ">f8"), "not >f8"),
        (np.zeros((20, 20), "c8"), "not <c8"),
        (np.zeros((4, 4, 4, 4, 4)), "1 to 4 dimensions"),
        (np.zeros(()), "1 to 4 dimensions"),
        (np.zeros((100, 3)), r"at least 64 items, 4 along each dimension, not \(100, 3\)"),
        (np.zeros(50), r"not \(50,\)"),
    ],
)
def test_arrays_that_zfp_or_stock_cannot_take_are_refused(x: np.ndarray, says: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=says):
        b2array.asarray(x, url=tmp_path / "x.b2nd", cparams=CParams("zfp", tolerance=1e-3))
    assert not (tmp_path / "x.b2nd").exists()


def test_writing_a_part_leaves_other_blocks_as_they_are() -> None:
    x = smooth((64, 64), "<f8")
    a = b2array.asarray(x, chunks=(64, 64), blocks=(16, 16), cparams=CParams("zfp", tolerance=1e-3))
    before = a[...]
    a[:16, :16] = x[:16, :16] + 1
    after = a[...]
    np.testing.assert_array_equal(after[16:], before[16:])
    np.testing.assert_array_equal(after[:16, 16:], before[:16, 16:])
    assert np.abs(after[:16, :16] - x[:16, :16] - 1).max() <= 1e-3


def test_a_copy_with_other_chunks_keeps_the_values(tmp_path: Path) -> None:
    a = b2array.asarray(smooth((64, 64), "<f8"), cparams=CParams("zfp", tolerance=1e-2))
    same, other = b2array.copy(a), b2array.copy(a, chunks=(20, 64))
    assert same.cparams == a.cparams
    np.testing.assert_array_equal(same[...], a[...])
    np.testing.assert_array_equal(other[...], a[...])


def test_convert_neither_compares_exactly_nor_writes_to_formats_without_bounds(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", smooth((64, 64), "<f8"))
    how = CParams("zfp", tolerance=1e-2)
    with pytest.raises(ValueError, match="verify=True compares exact values"):
        b2array.convert(tmp_path / "x.npy", tmp_path / "x.b2nd", cparams=how, verify=True)
    with pytest.raises(UnsupportedError, match="cannot store values with errors"):
        b2array.convert(tmp_path / "x.npy", tmp_path / "x.blp", cparams=how)
    b2array.convert(tmp_path / "x.npy", tmp_path / "x.b2nd", cparams=how)
    assert b2array.open(tmp_path / "x.b2nd").cparams.tolerance == 0.01


def test_a_stream_that_is_cut_short_reads_no_memory_behind_it() -> None:
    x = np.random.default_rng(0).normal(size=(16, 16))
    payload = codecs.encode(33, x.tobytes(), meta=253, typesize=8, blockshape=x.shape)
    assert payload is not None
    cut = payload[:40]
    first = codecs.decode(33, cut, x.nbytes, meta=253, typesize=8, blockshape=x.shape)
    assert first == codecs.decode(33, bytes(cut), x.nbytes, meta=253, typesize=8, blockshape=x.shape)
    for junk in (b"\xff" * 40, bytes(40), os.urandom(40)):
        for codec, meta in MODES:
            assert len(codecs.decode(codec, junk, x.nbytes, meta=meta, typesize=8, blockshape=x.shape)) == x.nbytes
    with pytest.raises(FormatError, match="too few to hold them"):
        codecs.decode(33, b"x", 2**24, meta=253, typesize=8, blockshape=(2**21,))
    with pytest.raises(FormatError, match="expected a rate of 1 to 100 percent for ZFP, found 0"):
        codecs.decode(35, payload, x.nbytes, meta=0, typesize=8, blockshape=x.shape)
    with pytest.raises(FormatError, match="found 2 bytes an item"):
        codecs.decode(33, payload, x.nbytes, meta=0, typesize=2, blockshape=x.shape)
    with pytest.raises(UnsupportedError, match="needs the shape of a block"):
        codecs.decode(33, payload, x.nbytes, meta=0, typesize=8)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    a = b2array.asarray(smooth((64,), "<f8"), cparams=CParams("zfp", tolerance=1e-2))

    def missing(name: str, *_: object) -> Any:
        raise ImportError(name) if name == "zfpy" else AssertionError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UnsupportedError, match=r"ZFP needs the package zfpy: pip install 'b2array\[zfp\]'"):
        a[...]


def test_a_release_of_zfpy_that_numcodecs_does_not_know_is_named(tmp_path: Path) -> None:
    info = tmp_path / "zfpy-1.0.1.post0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zfpy\nVersion: 1.0.1.post0\n")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(b2array.__file__).parents[1])])}
    done = subprocess.run(
        [sys.executable, "-c", "import b2array"], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:  # numcodecs may learn about it
        assert "ImportError" in done.stderr
        assert "pip install zfpy==1.0.1" in done.stderr


def test_the_largest_power_of_ten_below_a_tolerance() -> None:
    for number in range(-128, 128):
        assert zfp.exponent(10.0**number) == number
        assert zfp.tolerance(number & 0xFF) == 10.0**number
        assert zfp.exponent(5 * 10.0**number) == number
