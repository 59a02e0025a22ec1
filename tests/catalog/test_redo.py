"""The log of a local group: what is found in a member's place decides what its entry does, row by row of the table."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import blosc2
import numpy as np
import pytest

import b2array
from b2array.catalog.manifest import Kind, Manifest, PendingStep, staged_path
from b2array.catalog.redo import TABLE, Action, Occupant, Standing, action_of, inspect_place, read_member
from b2array.commit.publication import publish_step
from b2array.store.local_store import LocalStore

TOKEN = "0123456789abcdef"
ROWS = np.arange(60.0)
OTHER = np.full(7, 3.0)

KINDS: tuple[Kind, ...] = get_args(Kind)
SITUATIONS = [
    (kind, standing, staged)
    for kind, standing, staged in itertools.product(KINDS, Standing, [True, False])
    # A deletion brings nothing, and after it there is nothing.
    if kind != "delete" or not (staged or standing is Standing.AFTER)
]


class Group:
    """A directory with one member at "m.b2nd", an entry for it, and the two states that the entry names.

    `by_stock` lets python-blosc2 write the state that goes.
    """

    def __init__(self, root: Path, kind: Kind, *, by_stock: bool = False) -> None:
        self.root, self.kind = root, kind
        self.layout = "sparse" if kind == "index" else "contiguous"
        self.place = root / "m.b2nd"
        self.old, self.new = root.parent / "old", root.parent / "new"
        for path in (root, self.old, self.new):
            path.mkdir()
        self._make_old(by_stock=by_stock)
        before = inspect_place(LocalStore(str(self.place)))
        self._copy(self.place, self.old / "m.b2nd")
        self._make_new()
        after = inspect_place(LocalStore(str(self.place)))
        self._copy(self.place, self.new / "m.b2nd")
        header = b"" if after.frame is None else after.frame.header
        self.entry = PendingStep(
            kind,
            self._named(before),
            "" if kind == "delete" else after.state,
            header if kind == "patch" else TOKEN,
        )

    def _make_old(self, *, by_stock: bool) -> None:
        if by_stock:
            blosc2.asarray(ROWS, chunks=(20,), blocks=(10,), urlpath=str(self.place), contiguous=self.kind != "index")
        else:
            b2array.asarray(ROWS, chunks=(20,), blocks=(10,), url=self.place, layout=self.layout)

    def _make_new(self) -> None:
        if self.kind == "frame":
            self._clear(self.place)
            b2array.asarray(ROWS + 1, chunks=(20,), blocks=(10,), url=self.place, layout="sparse")
        else:
            b2array.open(self.place, "r+")[5] = 99

    @property
    def aside(self) -> Path:
        return self.root / staged_path("m.b2nd", TOKEN, sparse=self.kind == "index")

    def store_of(self, path: str) -> LocalStore:
        return LocalStore(str(self.root / path), within=str(self.root))

    @staticmethod
    def _clear(path: Path) -> None:
        for each in sorted(path.rglob("*"), reverse=True) if path.is_dir() else []:
            each.unlink()
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)

    @classmethod
    def _copy(cls, source: Path, target: Path) -> None:
        cls._clear(target)
        if source.is_dir():
            target.mkdir()
            for each in source.iterdir():
                (target / each.name).write_bytes(each.read_bytes())
        else:
            target.write_bytes(source.read_bytes())

    def arrange(self, standing: Standing, *, staged: bool) -> None:
        """Let the member's place be in this state, and let what the entry brings wait for it, or not."""
        old, new = self.old / "m.b2nd", self.new / "m.b2nd"
        self._copy(new if standing is Standing.AFTER and self.kind != "delete" else old, self.place)
        if self.kind == "patch" and staged and standing in (Standing.BEFORE, Standing.DAMAGED):
            self._extend()
        if standing is Standing.OTHER:
            self._clear(self.place)
            b2array.asarray(OTHER, chunks=(7,), blocks=(7,), url=self.place, layout=self.layout)
        if self.kind == "index":
            for chunk in new.glob("*.chunk"):
                (self.place / chunk.name).write_bytes(chunk.read_bytes())
        if staged and self.kind in ("index", "frame"):
            self._copy(new / "chunks.b2frame" if self.kind == "index" else new, self.aside)
        self._damage(standing)
        if standing is Standing.BEFORE:  # the state of a frame of other software includes the time of its file
            self.entry = replace(self.entry, before=self._named(inspect_place(LocalStore(str(self.place)))))

    def _damage(self, standing: Standing) -> None:
        header = self.place / "chunks.b2frame" if self.kind == "index" else self.place
        if standing is Standing.NOTHING or (standing is Standing.AFTER and self.kind == "delete"):
            header.unlink()
        elif standing is Standing.DAMAGED:
            with header.open("r+b") as file:
                file.write(b"\xff" * 60)

    def _named(self, found: Occupant) -> str:
        return found.state if self.kind in ("patch", "index") else found.lasting

    def _extend(self) -> None:
        """Append what a patch needs: the new chunk, index and trailer; the header is the old one."""
        whole, start = (self.new / "m.b2nd").read_bytes(), (self.old / "m.b2nd").stat().st_size
        with self.place.open("ab") as file:
            file.write(whole[start:])

    def files(self) -> dict[str, bytes]:
        return {
            each.relative_to(self.root).as_posix(): each.read_bytes()
            for each in sorted(self.root.rglob("*"))
            if each.is_file() and not each.name.endswith(".b2lock")
        }

    def value(self) -> np.ndarray:
        return b2array.open(self.place)[...]

    @property
    def values_after(self) -> np.ndarray:
        return b2array.open(self.new / "m.b2nd")[...]


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[..., Group]:
    def prepare(kind: Kind, standing: Standing, *, staged: bool, by_stock: bool = False) -> Group:
        group = Group(tmp_path / "g.b2d", kind, by_stock=by_stock)
        group.arrange(standing, staged=staged)
        return group

    return prepare


def test_the_table_covers_every_situation() -> None:
    assert {*TABLE} == {*itertools.product(Standing, [True, False])}
    assert all({*row} == {*KINDS} for row in TABLE.values())


@pytest.mark.parametrize("by_stock", [False, True], ids=["ours", "stock"])
@pytest.mark.parametrize(("kind", "standing", "staged"), SITUATIONS)
def test_an_entry_does_what_the_table_says(
    prepared: Callable[..., Group], kind: Kind, standing: Standing, staged: bool, by_stock: bool
) -> None:
    group = prepared(kind, standing, staged=staged, by_stock=by_stock)
    expected = TABLE[standing, staged][kind]
    _, action = action_of(group.entry, group.store_of, "m.b2nd")
    assert action is expected

    before = group.files()
    manifest = Manifest(pending={"m.b2nd": group.entry})
    read = partial(read_member, group.store_of, manifest, "m.b2nd")
    if action in (Action.WRITE, Action.PUT):
        assert read().generation == group.entry.after  # readers see it already
    elif action is Action.TAKE_OUT:
        with pytest.raises(FileNotFoundError):
            read()
    assert group.files() == before  # a look changes nothing

    for _ in range(2):  # the second time, there is nothing to do
        publish_step(LocalStore(str(group.root)), "m.b2nd", group.entry)
        if action in (Action.WRITE, Action.PUT):
            np.testing.assert_array_equal(group.value(), group.values_after)
            assert inspect_place(LocalStore(str(group.place))).state == group.entry.after
        elif action is Action.TAKE_OUT:
            assert group.files() == {}
        else:
            own = {name: content for name, content in before.items() if ".b2tmp" not in name}
            assert group.files() == own


@pytest.mark.parametrize("kind", ["frame", "delete"])
def test_a_write_to_a_frame_that_an_entry_deletes_does_not_save_it(prepared: Callable[..., Group], kind: Kind) -> None:
    group = prepared(kind, Standing.BEFORE, staged=kind == "frame")
    b2array.open(group.place, "r+")[0] = 55
    publish_step(LocalStore(str(group.root)), "m.b2nd", group.entry)
    if kind == "delete":
        assert group.files() == {}
    else:
        np.testing.assert_array_equal(group.value(), ROWS + 1)


@pytest.mark.parametrize("kind", ["patch", "index"])
def test_a_later_write_to_a_member_wins_over_its_entry(prepared: Callable[..., Group], kind: Kind) -> None:
    group = prepared(kind, Standing.BEFORE, staged=False)
    b2array.open(group.place, "r+")[0] = 55
    publish_step(LocalStore(str(group.root)), "m.b2nd", group.entry)
    assert group.value()[0] == 55


@pytest.mark.parametrize("kind", ["frame", "delete"])
def test_an_entry_that_names_a_damaged_frame_replaces_or_deletes_it(prepared: Callable[..., Group], kind: Kind) -> None:
    group = prepared(kind, Standing.DAMAGED, staged=kind == "frame")
    found = inspect_place(LocalStore(str(group.place)))
    assert found.is_damaged
    entry = PendingStep(kind, found.state, group.entry.after, TOKEN)
    publish_step(LocalStore(str(group.root)), "m.b2nd", entry)
    if kind == "delete":
        assert group.files() == {}
    else:
        np.testing.assert_array_equal(group.value(), ROWS + 1)


@pytest.mark.parametrize("torn", [1, 12, 40, 60])
def test_a_torn_header_is_written_again_if_its_tail_is_stored(prepared: Callable[..., Group], torn: int) -> None:
    group = prepared("patch", Standing.BEFORE, staged=True)
    with group.place.open("r+b") as file:
        file.write(group.entry.header[:torn])
    publish_step(LocalStore(str(group.root)), "m.b2nd", group.entry)
    np.testing.assert_array_equal(group.value(), group.values_after)


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_place_is_the_same_whether_it_is_compared_or_parsed(tmp_path: Path, layout: str) -> None:
    url = tmp_path / "x.b2nd"
    array = b2array.asarray(np.arange(10), url=url, layout=layout)
    before = inspect_place(LocalStore(url))
    assert inspect_place(LocalStore(url), before.frame) == before
    array[0] = 5
    after = inspect_place(LocalStore(url), before.frame)
    assert after.frame is not before.frame
    assert (after.state, after.version) == (array.generation, inspect_place(LocalStore(url)).version)
    url.rename(tmp_path / "y.b2nd")
    assert inspect_place(LocalStore(url), before.frame) == Occupant(None)
