"""Names, attributes and errors of files that others made never steer a terminal."""

from __future__ import annotations

import json
import shutil
import unicodedata
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest

import b2array
from b2array import __main__, errors
from b2array.printable import html_text, json_text, printable
from b2array.store.local_store import LocalStore
from b2array.tools.results import Failure

HOSTILE = "a\x1b[2J\x9b31m\u202eb\x7f\r"
"""Escape sequences of seven and of eight bits, text that turns around, and characters that delete."""


def steers(text: str) -> list[str]:
    """Return the characters of a text that are no text."""
    return [each for each in text if each != "\n" and unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a group, an array and an HDF5 file whose names and attributes are hostile."""
    tmp_path = tmp_path_factory.mktemp("hostile")
    group = b2array.open_group(tmp_path / "group.b2d", "w")
    group.attrs[HOSTILE] = HOSTILE
    items = np.array([HOSTILE[:8], "b", "c"])
    array = group.create("member", data=items, attrs={"note": HOSTILE, HOSTILE: 1})
    array.close()
    shutil.copy(tmp_path / "group.b2d" / "member.b2nd", tmp_path / f"{HOSTILE}.b2nd")
    shutil.copytree(tmp_path / "group.b2d", tmp_path / "unmarked.b2d", ignore=shutil.ignore_patterns("*.msgpack"))
    (tmp_path / "unmarked.b2d" / "member.b2nd").rename(tmp_path / "unmarked.b2d" / f"{HOSTILE}.b2nd")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.create_dataset(HOSTILE, data=np.arange(3)).attrs[HOSTILE] = HOSTILE
        file["object"] = h5py.SoftLink(HOSTILE)
    (tmp_path / "damaged.b2d").mkdir()
    (tmp_path / "damaged.b2d" / f"{HOSTILE}.b2nd").write_bytes(b"nothing")
    return tmp_path


PLACES = ("group.b2d", "group.b2d/member", f"{HOSTILE}.b2nd", "unmarked.b2d", "other.h5", "damaged.b2d", HOSTILE)
COMMANDS = (
    ["info"],
    ["info", "--json"],
    ["info", "--chunks"],
    ["info", "--raw"],
    ["ls"],
    ["ls", "--json"],
    ["tree"],
    ["cat"],
    ["verify"],
    ["verify", "--json"],
    ["repair", "--dry-run"],
    ["vacuum", "--dry-run"],
    ["repack", "--dry-run"],
    [HOSTILE],
    ["bench", f"--{HOSTILE}"],
)


@pytest.mark.parametrize("place", PLACES, ids=printable)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: printable(" ".join(command)))
def test_no_command_prints_what_steers_a_terminal(
    hostile: Path, command: list[str], place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    __main__.main([*command, str(hostile / place)])
    out, err = capfd.readouterr()
    assert steers(out + err) == []


def test_a_name_that_is_no_utf8_is_printed_as_escapes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    b2array.asarray([1], url=tmp_path / "\udc80.b2nd").close()
    for command in ("info", "verify"):
        assert __main__.main([command, str(tmp_path / "\udc80.b2nd")]) == 0
    out, err = capfd.readouterr()
    assert "\\udc80.b2nd" in out
    assert steers(out + err) == []


def test_further_lines_of_an_attribute_do_not_look_like_rows(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    attrs = {"history": "made\nformat : harmless"}
    b2array.asarray([1], url=tmp_path / "a.b2nd", attrs=attrs).close()
    assert __main__.main(["info", str(tmp_path / "a.b2nd")]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert not any(line.startswith("format : harmless") for line in lines)
    assert any(line.strip() == "format : harmless" for line in lines)


def test_json_means_the_same_as_without_escapes() -> None:
    data = {HOSTILE: [HOSTILE, 1.5, None, "é", "\U000e0001", "\u2028"]}
    shown = json_text(data)
    assert json.loads(shown) == data
    assert steers(shown) == []
    assert "é" in shown


def test_what_handles_show_of_themselves_can_be_printed(hostile: Path) -> None:
    array = b2array.open(hostile / f"{HOSTILE}.b2nd")
    group = b2array.open_group(hostile / "unmarked.b2d")
    chunks = b2array.open_schunk(hostile / f"{HOSTILE}.b2nd")
    report = b2array.verify(hostile / "unmarked.b2d")
    shown = [array, array.T, array.attrs, array.info, array.explain(...), group, group.info, chunks, report]
    for each in shown:
        pages = each._repr_html_() if hasattr(each, "_repr_html_") else ""
        assert steers(f"{each!r}{each}{pages}") == [], type(each)
    assert steers(group.tree()) == []
    failure = Failure(HOSTILE, HOSTILE, damaged=True)
    assert steers(str(failure) + failure._repr_html_()) == []


def test_errors_and_warnings_can_be_printed() -> None:
    assert str(errors.FormatError(HOSTILE)) == printable(HOSTILE)
    located = errors.prefix_error(HOSTILE, errors.ChecksumError(f"{HOSTILE}: expected 1, found 2"))
    assert str(located) == f"{printable(HOSTILE)}: expected 1, found 2"
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        errors.warn(HOSTILE)
    assert str(found[0].message) == printable(HOSTILE)


def test_handles_keep_the_name_as_it_is(hostile: Path) -> None:
    url = b2array.open(hostile / f"{HOSTILE}.b2nd").url
    assert url == LocalStore(hostile / f"{HOSTILE}.b2nd").url
    assert b2array.open(url).shape == (3,)


@pytest.mark.parametrize("text", ["plain", "é ü 漢字 🙂", "a b", r"a\nb"])
def test_plain_text_stays(text: str) -> None:
    assert printable(text) == text
    assert html_text(text) == text
