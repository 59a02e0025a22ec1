"""JPEG 2000: images that the plugins of C-Blosc2 compressed, read with the same values."""

from __future__ import annotations

import importlib
import os
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import b2array
from b2array import CParams
from b2array.codec import codecs
from b2array.errors import FormatError, UnsupportedError

pytest.importorskip("imagecodecs")

IMAGES = Path(__file__).parents[1] / "golden" / "images"
"""Images that plugins for older versions of python-blosc2 compressed."""


def load_make() -> Any:
    spec = importlib.util.spec_from_file_location("make_images", IMAGES / "make.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


make = load_make()


@pytest.mark.parametrize("name", make.IMAGES)
def test_images_of_older_plugins_have_their_values(name: str) -> None:
    image = make.IMAGES[name]
    if image.meta:
        with np.load(IMAGES / "errors.npz") as errors:
            expected = errors[name]
        assert not np.array_equal(expected, image.values)
    else:
        expected = image.values
    with b2array.open(IMAGES / f"{name}.b2nd") as a:
        assert (a.cparams.codec, a.cparams.codec_meta) == (name.partition("-")[0], image.meta)
        np.testing.assert_array_equal(a[...], expected)
        np.testing.assert_array_equal(a[..., 3:8], expected[..., 3:8])
        copy = b2array.copy(a, chunks=tuple(-(-n // 2) for n in a.shape))
        np.testing.assert_array_equal(copy[...], expected)


def test_planes_of_other_items_are_refused() -> None:
    with b2array.open(IMAGES / "openhtj2k-u4.b2nd") as a:
        data = stream_of(a.get_chunk(0))
    planes = codecs.decode(36, data, 24000, typesize=4, blockshape=(3, 40, 50))
    np.testing.assert_array_equal(np.frombuffer(planes, "<u4"), make.IMAGES["openhtj2k-u4"].values.ravel())
    with pytest.raises(FormatError, match="expected items of 4 bytes for planes of JPEG 2000, found 2"):
        codecs.decode(36, data, 12000, typesize=2, blockshape=(3, 40, 50))
    with pytest.raises(FormatError, match="expected an image of 5200 samples, found 40 x 50 with 3 components"):
        codecs.decode(36, data, 20800, typesize=4, blockshape=(2, 40, 65))


# The plugins stay out of this process. C-Blosc2 asks the first `python` of the path where they are.
WRITE = """
import sys
import blosc2, blosc2_htj2k, blosc2_j2k, numpy as np
rng = np.random.default_rng(0)
values = {}
for codec in (39, 40):
    for shape, blocks in (
        ((40, 50), (40, 50)), ((40, 50, 3), (40, 50, 3)), ((5, 40, 50), (1, 40, 50)), ((40, 50, 1), (40, 50, 1)),
        ((100, 90), (64, 64)),
    ):
        for dtype in ("u1", "<u2", "<i2"):
            x = (np.arange(np.prod(shape)).reshape(shape) // 7 + rng.integers(0, 9, shape)).astype(dtype)
            cparams = {
                "codec": blosc2.Codec(codec), "filters": [], "nthreads": 1, "splitmode": blosc2.SplitMode.NEVER_SPLIT
            }
            name = f"{codec} {len(values)}"
            a = blosc2.asarray(
                x, chunks=shape, blocks=blocks, cparams=cparams, urlpath=f"{sys.argv[1]}/{name}.b2nd", mode="w"
            )
            values[name] = a[...]
for codec in (39, 40):
    for dtype in ("u1", "<u2"):
        x = (np.arange(30000).reshape(200, 150) // 7 % 200 + rng.integers(0, 9, (200, 150))).astype(dtype)
        cparams = {
            "codec": blosc2.Codec(codec), "codec_meta": 50, "filters": [], "nthreads": 1,
            "splitmode": blosc2.SplitMode.NEVER_SPLIT,
        }
        name = f"errors {codec} {dtype[-2:]}"
        a = blosc2.asarray(
            x, chunks=x.shape, blocks=x.shape, cparams=cparams, urlpath=f"{sys.argv[1]}/{name}.b2nd", mode="w"
        )
        values[name], values[f"{name} before"] = a[...], x
np.savez(f"{sys.argv[1]}/values.npz", **values)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    if not all(map(find_spec, ("blosc2_j2k", "blosc2_htj2k"))):
        pytest.skip("needs the plugins of Blosc2")
    directory = tmp_path_factory.mktemp("images")
    env = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(directory)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with np.load(directory / "values.npz") as values:
        return directory, dict(values)


def test_images_have_the_values_of_python_blosc2(written) -> None:
    directory, values = written
    exact = {name: expected for name, expected in values.items() if "errors" not in name}
    assert len(exact) == 30
    for name, expected in exact.items():
        with b2array.open(directory / f"{name}.b2nd") as a:
            assert a.cparams.codec == {"39": "j2k", "40": "htj2k"}[name[:2]]
            np.testing.assert_array_equal(a[...], expected, name)
            np.testing.assert_array_equal(a[..., 3:8], expected[..., 3:8], name)


@pytest.mark.parametrize("dtype", ["u1", "u2"])
def test_values_with_errors_are_those_of_grok_and_nearly_those_of_openhtj2k(written, dtype: str) -> None:
    directory, values = written
    of_grok, of_openhtj2k = (f"errors {codec} {dtype}" for codec in (39, 40))
    with b2array.open(directory / f"{of_grok}.b2nd") as a:
        np.testing.assert_array_equal(a[...], values[of_grok])
    with b2array.open(directory / f"{of_openhtj2k}.b2nd") as a:
        before = values[f"{of_openhtj2k} before"].astype(int)
        ours, theirs = (np.abs(found.astype(int) - before).mean() for found in (a[...], values[of_openhtj2k]))
    assert 0 < theirs < 10
    assert ours < 1.01 * theirs


def test_images_are_not_written_and_copies_have_another_codec(written, tmp_path: Path) -> None:
    directory, values = written
    name = next(iter(values))
    with pytest.raises(UnsupportedError, match="j2k can be read but not written"):
        b2array.asarray(values[name], url=tmp_path / "x.b2nd", cparams=CParams("j2k"))
    a = b2array.open(directory / f"{name}.b2nd")
    copy = b2array.copy(a, tmp_path / "copy.b2nd", chunks=(20, 30))
    assert copy.cparams.codec == "zstd"
    np.testing.assert_array_equal(copy[...], values[name])
    b2array.copy(a, tmp_path / "same.b2nd")
    changed = b2array.open(tmp_path / "same.b2nd", "r+")
    with pytest.raises(UnsupportedError, match="only decoded"):
        changed[3:9] = np.arange(50, dtype="u1")
    np.testing.assert_array_equal(b2array.open(tmp_path / "same.b2nd")[...], values[name])


def stream_of(chunk: bytes) -> bytes:
    (start,) = struct.unpack_from("<i", chunk, 32)
    (size,) = struct.unpack_from("<i", chunk, start)
    return chunk[start + 4 : start + 4 + size]


def stream(written) -> bytes:
    directory, values = written
    with b2array.open(directory / f"{next(iter(values))}.b2nd") as a:
        return stream_of(a.get_chunk(0))


def decode(data: bytes, shape: tuple[int, ...] | None = (40, 50)) -> Any:
    return codecs.decode(39, data, 2000, typesize=1, blockshape=shape)


def test_a_stream_that_claims_another_image_gets_no_memory(written) -> None:
    data = stream(written)
    assert len(decode(data)) == 2000
    at = data.index(bytes.fromhex("ff4fff51"))
    large = data[: at + 8] + struct.pack(">II", 2**31, 2**31) + data[at + 16 :]
    with pytest.raises(FormatError, match="expected an image of 2000 samples, found 2147483648 x 2147483648 with 1"):
        decode(large)
    with pytest.raises(FormatError, match="expected an image of 2000 samples, found -1 x 40"):
        decode(data[: at + 8] + struct.pack(">IIII", 0, 40, 1, 0) + data[at + 24 :])
    for cut in (b"", data[: at + 20], data[:at]):
        with pytest.raises(FormatError, match=r"expected a codestream of JPEG 2000, found none|too few"):
            decode(cut)
    with pytest.raises(FormatError):
        decode(data[: at + 60])
    with pytest.raises(UnsupportedError, match="needs the shape of a block"):
        decode(data, None)


def test_without_the_package_the_error_names_the_extra(written, monkeypatch: pytest.MonkeyPatch) -> None:
    data = stream(written)

    def missing(name: str, *_: object) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UnsupportedError, match=r"needs the package imagecodecs: pip install 'b2array\[jpeg2000\]'"):
        decode(data)
