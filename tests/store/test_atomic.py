"""Files that are made elsewhere: they replace what was there as a whole, or leave it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from b2array import config
from b2array.store.atomic import AtomicFile, require_free
from b2array.store.open import open_store
from b2array.store.spans import Span


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return open_store(tmp_path / "new" / "x" if request.param == "local" else f"memory://{tmp_path.name}/placement/x")


def content(store) -> bytes:
    return bytes(store.read([Span("", 0, store.stamp("").size)])[0])


def leftovers(tmp_path: Path) -> list[str]:
    return [path.name for path in tmp_path.rglob("*") if path.name not in ("new", "x", "temporary")]


def test_a_complete_file_gets_its_place(store, tmp_path):
    with AtomicFile(store, overwrite=False) as path:
        Path(path).write_bytes(b"complete")
        with pytest.raises(FileNotFoundError):
            store.stamp("")
    assert content(store) == b"complete"
    assert leftovers(tmp_path) == []


def test_an_error_leaves_what_was_there(store, tmp_path):
    (tmp_path / "new").mkdir()
    store.create("", b"before")

    def write():
        with AtomicFile(store, overwrite=True) as path:
            Path(path).write_bytes(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert content(store) == b"before"
    assert leftovers(tmp_path) == []


def test_what_came_meanwhile_is_replaced_only_if_allowed(store, tmp_path):
    def write():
        with AtomicFile(store, overwrite=False) as path:
            Path(path).write_bytes(b"mine")
            store.create("", b"the other one's")

    with pytest.raises(FileExistsError):
        write()
    assert content(store) == b"the other one's"
    with AtomicFile(store, overwrite=True) as path:
        Path(path).write_bytes(b"mine")
    assert content(store) == b"mine"
    assert leftovers(tmp_path) == []


def test_durable_files_are_on_the_disk_before_they_get_their_name(tmp_path, monkeypatch):
    synced = []
    original = os.fsync

    def fsync(fd):
        synced.append((tmp_path / "x").exists())
        original(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with config.using(durable=True), AtomicFile(open_store(tmp_path / "x"), overwrite=False) as path:
        Path(path).write_bytes(b"complete")
    assert synced[0] is False


def test_only_files_of_the_kind_may_be_replaced(store, tmp_path):
    require_free(store, {"": b"MAGIC"}, "a file of magic", overwrite=False)
    store.create("", b"MAGIC and more")
    require_free(store, {"": b"MAGIC"}, "a file of magic", overwrite=True)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        require_free(store, {"": b"MAGIC"}, "a file of magic", overwrite=False)
    store.replace("", b"")
    assert require_free(store, {"": b"MAGIC"}, "a file of magic", overwrite=True) is None
    with pytest.raises(FileExistsError, match="overwrite=True"):
        require_free(store, {"": b"MAGIC"}, "a file of magic", overwrite=False)
    store.replace("", b"MA")
    with pytest.raises(FileExistsError, match="not a file of magic"):
        require_free(store, {"": b"MAGIC"}, "a file of magic", overwrite=True)
    with pytest.raises(FileExistsError, match="directory"):
        require_free(open_store(tmp_path), {"": b"MAGIC"}, "a file of magic", overwrite=True)


def test_a_directory_may_be_replaced_for_the_objects_in_it(tmp_path):
    kinds = {"list": b"", "index": b"MAGIC"}
    options = {"name": "list", "alone": True}
    store = open_store(tmp_path / "directory")
    assert require_free(store, kinds, "a list", overwrite=False, **options) is None
    store.create("other", b"precious")
    with pytest.raises(FileExistsError, match="not a list that can be replaced"):
        require_free(store, kinds, "a list", overwrite=True, **options)
    assert require_free(store, kinds, "a list", overwrite=True, name="list") is None
    (tmp_path / "file").write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="not a list that can be replaced"):
        require_free(open_store(tmp_path / "file"), kinds, "a list", overwrite=True, **options)
    store.create("index", b"MAGIC and more")
    assert require_free(store, kinds, "a list", overwrite=True, **options) == "index"
    with pytest.raises(FileExistsError, match="overwrite=True"):
        require_free(store, kinds, "a list", overwrite=False, **options)


def test_a_directory_with_nothing_but_a_lock_holds_nothing(tmp_path):
    (tmp_path / "a.b2nd").mkdir()
    kinds = {"": b"frame"}
    with pytest.raises(FileExistsError, match="is a directory"):
        require_free(open_store(tmp_path / "a.b2nd"), kinds, "a frame", overwrite=True)
    (tmp_path / "a.b2nd" / ".b2lock").write_bytes(bytes(16))
    assert require_free(open_store(tmp_path / "a.b2nd"), kinds, "a frame", overwrite=True) is None
