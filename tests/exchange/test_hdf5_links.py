"""HDF5 files that name other files, and links."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import b2array
from b2array.errors import B2ArrayError, UnsupportedError

SECRET = np.frombuffer(b"secret", "u1")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Make files that a received file must not read."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "secret").write_bytes(bytes(SECRET))
    with h5py.File(place / "other.h5", "w") as file:
        file["x"] = SECRET
        file["group/x"] = SECRET
    return place


def _raw(file: Any, outside: Path) -> None:
    file.create_dataset("stolen", (6,), "u1", external=[(str(outside / "secret"), 0, 6)])


def _link(file: Any, outside: Path) -> None:
    file["stolen"] = h5py.ExternalLink(str(outside / "other.h5"), "/x")


def _soft_link(file: Any, outside: Path) -> None:
    file["behind"] = h5py.ExternalLink(str(outside / "other.h5"), "/group")
    file["stolen"] = h5py.SoftLink("/behind/x")


def _virtual(file: Any, outside: Path) -> None:
    layout = h5py.VirtualLayout((6,), "u1")
    layout[:] = h5py.VirtualSource(str(outside / "other.h5"), "x", (6,))
    file.create_virtual_dataset("stolen", layout)


def _virtual_of_raw(file: Any, outside: Path) -> None:
    file.create_dataset("raw", (6,), "u1", external=[(str(outside / "secret"), 0, 6)])
    layout = h5py.VirtualLayout((6,), "u1")
    layout[:] = h5py.VirtualSource(file["raw"])
    file.create_virtual_dataset("stolen", layout)


WAYS = (_raw, _link, _soft_link, _virtual, _virtual_of_raw)


@pytest.mark.parametrize("way", WAYS)
def test_items_in_other_files_are_read_only_on_request(
    way: Callable[[Any, Path], None], outside: Path, tmp_path: Path
) -> None:
    received = tmp_path / "received.h5"
    with h5py.File(received, "w") as file:
        file["plain"] = np.arange(3)
        way(file, outside)
    with pytest.raises(B2ArrayError, match=r"received\.h5#stolen: .*(secret|other\.h5)'; .*follow_external=True"):
        b2array.convert(received, tmp_path / "all.b2d")
    found = b2array.open(tmp_path / "all.b2d")
    assert [*found] == ["plain"]
    with pytest.raises(UnsupportedError, match="follow_external=True"):
        b2array.convert(f"{received}#stolen", tmp_path / "one.b2nd")
    assert not (tmp_path / "one.b2nd").exists()
    b2array.convert(f"{received}#stolen", tmp_path / "one.b2nd", follow_external=True, verify=True)
    np.testing.assert_array_equal(b2array.open(tmp_path / "one.b2nd")[...], SECRET)
    b2array.convert(received, tmp_path / "followed.b2d", follow_external=True)
    np.testing.assert_array_equal(b2array.open(tmp_path / "followed.b2d")["stolen"][...], SECRET)


@pytest.mark.parametrize("way", WAYS)
def test_the_program_names_dataset_and_file_and_the_option(
    way: Callable[[Any, Path], None], outside: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from b2array import __main__

    received = tmp_path / "received.h5"
    with h5py.File(received, "w") as file:
        file["plain"] = np.arange(3)
        way(file, outside)
    for command in (["cat", f"{received}#stolen"], ["convert", str(received), str(tmp_path / "x.b2d")]):
        assert __main__.main(command) == 1
        shown = capsys.readouterr()
        assert "#stolen" in shown.err
        assert "--follow-external" in shown.err
        assert "115 101" not in shown.out
    command = ["convert", "--follow-external", str(received), str(tmp_path / "y.b2d")]
    assert __main__.main(command) == 0


def test_a_link_to_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # who opens it waits for ever
    with h5py.File(tmp_path / "received.h5", "w") as file:
        file["plain"] = np.arange(3)
        file["link"] = h5py.ExternalLink(str(tmp_path / "pipe"), "/x")
    with pytest.raises(B2ArrayError, match="pipe"):
        b2array.convert(tmp_path / "received.h5", tmp_path / "x.b2d")
    for name in ("link", "link/x"):
        with pytest.raises(UnsupportedError, match="pipe"):
            b2array.convert(f"{tmp_path}/received.h5#{name}", tmp_path / "x.b2nd")


def test_nothing_is_written_through_a_link_to_another_file(outside: Path, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "received.h5", "w") as file:
        file["g"] = h5py.ExternalLink(str(outside / "other.h5"), "/group")
    before = (outside / "other.h5").read_bytes()
    np.save(tmp_path / "x.npy", np.arange(3))
    b2array.open_group(tmp_path / "x.b2d", "w").create("g/new", (3,)).close()
    with pytest.raises(UnsupportedError, match=r"other\.h5"):
        b2array.convert(tmp_path / "x.npy", f"{tmp_path}/received.h5#g/x", overwrite=True)
    assert (outside / "other.h5").read_bytes() == before


def test_virtual_datasets_of_the_same_file_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = np.arange(3)
        layout = h5py.VirtualLayout((2, 3), "i8")
        layout[0] = layout[1] = h5py.VirtualSource(file["a"])
        file.create_virtual_dataset("twice", layout)
    b2array.convert(tmp_path / "x.h5", tmp_path / "x.b2d", verify=True)
    assert b2array.open(tmp_path / "x.b2d")["twice"][...].tolist() == [[0, 1, 2]] * 2


def test_soft_links_to_datasets_are_copied_and_others_are_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["g/x"] = np.arange(3)
        file["copied"] = h5py.SoftLink("/g/x")
        file["g/beside"] = h5py.SoftLink("x")
        file["group"], file["nothing"] = h5py.SoftLink("/g"), h5py.SoftLink("/nowhere")
    with pytest.warns(UserWarning, match=r"x\.h5: the links \['group', 'nothing'\] are left out"):
        b2array.convert(tmp_path / "x.h5", tmp_path / "x.b2d", verify=True)
    found = b2array.open(tmp_path / "x.b2d")
    for name in ("copied", "g/x", "g/beside"):
        assert found[name][...].tolist() == [0, 1, 2]
    assert [*found] == ["copied", "g"]
    b2array.convert(f"{tmp_path}/x.h5#group/x", tmp_path / "x.b2nd")
    assert b2array.open(tmp_path / "x.b2nd").shape == (3,)


def test_links_that_lead_in_circles_end(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = np.arange(3)
        file["circle"] = h5py.SoftLink("/circle")
    with pytest.warns(UserWarning, match=r"the links \['circle'\] are left out"):
        b2array.convert(tmp_path / "x.h5", tmp_path / "x.b2d")
    assert [*b2array.open(tmp_path / "x.b2d")] == ["a"]


@pytest.mark.parametrize("target", ["x.b2d", "x.zarr", "y.h5"])
@pytest.mark.parametrize("text", [["a", "é🙂", "", "long " * 50], [b"a", b"", b"\xff" * 9]], ids=["text", "bytes"])
def test_text_of_any_length_is_sized_by_itself(text: list[Any], target: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        if isinstance(text[0], str):
            file.create_dataset("t", data=text, dtype=h5py.string_dtype())
        else:
            file["t"] = np.array(text)
        file.create_dataset("none", (0,), h5py.string_dtype())
    b2array.convert(tmp_path / "x.h5", tmp_path / target, verify=True)
    b2array.convert(tmp_path / target, tmp_path / "back.h5", verify=True)
    b2array.convert(tmp_path / "back.h5", tmp_path / "back.b2d", verify=True)
    assert b2array.open(tmp_path / "back.b2d")["t"][...].tolist() == text
    with h5py.File(tmp_path / "back.h5") as file:
        data = file["t"]
        assert (data.asstr()[...] if isinstance(text[0], str) else data[...]).tolist() == text


@pytest.mark.parametrize("target", ["x.b2d", "x.zarr"])
def test_bytes_of_any_length_that_are_no_text_stay_bytes(target: str, tmp_path: Path) -> None:
    # HDF5 has no type of its own for them: h5py takes text in ASCII, and puts any bytes into it.
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("bytes", data=[b"a", b"", b"\xff" * 9], dtype=h5py.special_dtype(vlen=bytes))
        file.create_dataset("text", data=[b"a", b"bcd"], dtype=h5py.special_dtype(vlen=bytes))
    b2array.convert(tmp_path / "x.h5", tmp_path / target, verify=True)
    b2array.convert(tmp_path / target, tmp_path / "back.b2d", overwrite=True)
    back = b2array.open(tmp_path / "back.b2d")
    assert back["bytes"][...].tolist() == [b"a", b"", b"\xff" * 9]
    assert back["text"][...].tolist() == ["a", "bcd"]


def test_text_that_one_size_cannot_hold_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("t", data=[b"\xff"], dtype=h5py.string_dtype())
    with pytest.raises(B2ArrayError, match=r"x\.h5#t: .*utf-8"):
        b2array.convert(tmp_path / "x.h5", tmp_path / "x.b2nd")
