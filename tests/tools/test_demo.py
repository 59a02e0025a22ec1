"""The demonstration and the program that runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from b2array import config
from b2array.tools import demo

ROOT = Path(__file__).parents[2]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def shares(output: str) -> dict[str, float]:
    """Return for each part that was read how much of the file that took, in percent."""
    return {key: float(share) for key, share in re.findall(r"^(a\[.*?\]) .*?([\d.]+)%", output, re.MULTILINE)}


def test_shows_that_parts_take_a_part_of_the_file(temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.main(64, 160)
    found = shares(capsys.readouterr().out)
    assert found.keys() == {"a[32, 53, 40]", "a[:, 53, 40]", "a[32:40, 53:73, 40:60]", "a[32]", "a[...]"}
    # All chunks, but neither header nor index.
    assert 95 < found["a[...]"] <= 100
    assert all(0 < found[key] < 70 for key in found if key != "a[...]")
    assert found["a[32, 53, 40]"] < 10


def test_leaves_nothing_behind(temporary: Path) -> None:
    cache_bytes = config.cache_bytes
    demo.main(8, 16)
    assert list(temporary.iterdir()) == []
    assert config.cache_bytes == cache_bytes


def test_stops_if_what_it_reads_is_not_what_it_stored(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = demo.creation.asarray
    monkeypatch.setattr(demo.creation, "asarray", lambda x, **options: real(x + 1, **options))
    with pytest.raises(RuntimeError, match="differs"):
        demo.main(8, 16)
    assert list(temporary.iterdir()) == []


def test_a_writer_that_is_killed_loses_nothing_and_has_written(
    temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.main(16, 64)
    found = re.search(r"with ([\d.]+) KiB written", capsys.readouterr().out)
    assert found is not None
    assert float(found[1]) > 5


def test_says_if_a_killed_writer_has_changed_anything(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = demo._WRITER.replace("LocalStore.patch = os.replace =", "stop =") + "stop()"
    assert commits != demo._WRITER + "stop()"
    monkeypatch.setattr(demo, "_WRITER", commits)
    with pytest.raises(RuntimeError, match="killed"):
        demo.main(16, 64)


def test_the_picture_shows_high_and_low(capsys: pytest.CaptureFixture[str]) -> None:
    plane = np.linspace(0, 1, 100, dtype="f4")[:, None] + np.zeros((1, 100), "f4")
    lines = list(demo._draw(plane))
    assert (lines[0].strip(), lines[-1].strip()) == ("", "@" * 76)
    assert len(set("".join(lines))) == 10
    assert len(set("".join(demo._draw(np.zeros((3, 3), "f4"))))) == 1


def test_the_pond_is_a_pond() -> None:
    field = demo.ripples(40, 48)
    assert field.shape == (40, 48, 48)
    assert field.dtype == np.float32
    assert field[0].max() > 0.5
    # Waves spread, stay bounded, and the edge stays at rest.
    assert np.abs(field[-1, 20:30, 20:30]).max() > 0.01
    assert np.abs(field).max() < 2
    assert np.abs(field[:, 0]).max() < 0.01
    np.testing.assert_array_equal(field, demo.ripples(40, 48))


@pytest.mark.slow
def test_runs_as_a_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "b2array", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    found = shares(done.stdout)
    assert 95 < found["a[...]"] <= 100
    assert found["a[80, 128, 96]"] < 1
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
