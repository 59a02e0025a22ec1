"""Writers of single members and transactions of their group, in a store that compares versions and has no locks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import blosc2
import fsspec
import numpy as np
import pytest
from clouds import Cloud
from operations import READS, WRITES, Killed, Operations, compare

import b2array
from b2array import open_group
from b2array.catalog.known_manifests import read_manifest
from b2array.catalog.manifest import MANIFEST, Manifest
from b2array.catalog.redo import inspect_place
from b2array.commit import in_bucket
from b2array.errors import ChunkMissingError, ConflictError, FormatError
from b2array.store import base
from b2array.store.base import HiddenError
from b2array.store.open import open_store

LAYOUTS = pytest.mark.parametrize("layout", ["sparse", "contiguous"])

pytestmark = pytest.mark.filterwarnings("ignore:.*one file in this store is rewritten")


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> Operations:
    """Let memory behave as an object store, watch what happens there, and let nobody wait long."""
    monkeypatch.setattr(base, "_LONGEST_PAUSE", 0.001)
    kind = type(open_store("memory://any"))
    compare(kind, monkeypatch)
    found = Operations()
    found.listen(kind, monkeypatch)
    return found


@pytest.fixture
def url(operations: Operations, tmp_path: Path) -> Iterator[str]:
    place = f"memory://{tmp_path.name}.b2d"
    yield place
    with suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm(place, recursive=True)


def made(url: str, layout: Any, *, in_group: bool = True, names: str = "xy") -> b2array.Group:
    """Make a group of arrays, which note it, or do not."""
    for name in names:
        if in_group:
            open_group(url, "a").create(name, data=np.arange(8.0), chunks=(2,), layout=layout)
        else:
            b2array.asarray(np.arange(8.0), url=f"{url}/{name}.b2nd", chunks=(2,), layout=layout)
    return open_group(url, "a")


def manifest(url: str) -> Manifest:
    return read_manifest(open_store(url))[0]


def noted(url: str, name: str) -> Any:
    frame = inspect_place(open_store(f"{url}/{name}.b2nd")).frame
    assert frame is not None
    return frame.state.annotations.group_commit


@LAYOUTS
def test_a_member_that_notes_no_group_is_written_through_it_once_it_is_adopted(
    url: str, layout: Any, operations: Operations
) -> None:
    made(url, layout, in_group=False)
    own = b2array.open(f"{url}/x.b2nd", "r+")
    own.attrs["a"] = 1
    with open_group(url, "r+").transaction() as changes:
        changes["x"][0] = 7
    own.refresh()
    writes = ["create", "replace", "replace"]  # the index of the revision, the manifest, and the published index
    for value in (2, 3):
        names = operations.watch(lambda value=value: own.attrs.update(a=value))
        assert [name for name in names if name in WRITES] == writes
    assert own[:2].tolist() == [7, 1]


@LAYOUTS
def test_a_copy_of_a_member_elsewhere_is_written_without_the_group(
    url: str, layout: Any, operations: Operations
) -> None:
    made(url, layout)
    memory, elsewhere = fsspec.filesystem("memory"), f"{url}-copy.b2nd"
    memory.copy(f"{url}/x.b2nd", elsewhere, recursive=True)
    own = b2array.open(elsewhere, "r+")
    own[0] = 7
    other = open_group(f"{url}-other.b2d", "w")
    memory.copy(f"{url}/x.b2nd", f"{other.url}/x.b2nd", recursive=True)
    b2array.open(f"{other.url}/x.b2nd", "r+")[0] = 8
    assert [b2array.open(place)[0] for place in (elsewhere, f"{other.url}/x.b2nd")] == [7, 8]


@LAYOUTS
@pytest.mark.parametrize("made_by", ["b2array", "python-blosc2"])
@pytest.mark.parametrize("change", ["items", "append", "resize", "attribute", "snapshot"])
def test_the_first_transaction_of_an_array_is_no_conflict_with_itself(
    url: str, layout: Any, made_by: str, change: str, tmp_path: Path
) -> None:
    if made_by == "python-blosc2":
        blosc2.asarray(np.arange(8.0), urlpath=str(tmp_path / "x.b2nd"), mode="w", chunks=(2,), blocks=(2,))
        open_store(f"{url}/x.b2nd").create("", (tmp_path / "x.b2nd").read_bytes())
    else:
        made(url, layout, in_group=False)
    expected = np.arange(8.0)
    with open_group(url, "a").transaction() as changes:
        x = changes["x"]
        if change == "items":
            x[1] = expected[1] = 7
        elif change == "append":
            x.append([8.0])
            expected = np.arange(9.0)
        elif change == "resize":
            x.resize(5)
            expected = np.arange(5.0)
        elif change == "attribute":
            x.attrs["unit"] = "m"
        else:
            x.snapshot("start")
    assert b2array.open(f"{url}/x.b2nd")[...].tolist() == expected.tolist()
    assert noted(url, "x")[2] == "x.b2nd"
    assert b2array.verify(f"{url}/x.b2nd", deep=True).problems == ()


@LAYOUTS
def test_an_array_with_other_writers_is_restored_in_a_transaction(url: str, layout: Any) -> None:
    made(url, layout, in_group=False)
    own = b2array.open(f"{url}/x.b2nd", "r+")
    own.snapshot("start")
    own[...] = 1

    def restore() -> None:
        with open_group(url, "a").transaction() as changes:
            changes["x"].restore("start")

    restore()
    assert b2array.open(own.url)[...].tolist() == [*range(8)]
    own[...] = 2
    restore()
    assert b2array.open(own.url)[...].tolist() == [*range(8)]
    assert b2array.verify(own.url, deep=True).problems == ()


@LAYOUTS
def test_a_late_writer_repeats_its_change_on_top_of_a_transaction(
    url: str, layout: Any, operations: Operations
) -> None:
    group = made(url, layout)
    own = b2array.open(f"{url}/x.b2nd", "r+")
    done: list[str] = []

    def transaction(_: int, name: str, call: Callable[[], object]) -> object:
        found = call()
        if name == "create" and not done:
            done.append(name)
            with group.transaction() as changes:
                changes["x"][0] = 7
        return found

    operations.watch(lambda: own.__setitem__(-1, 8), transaction)
    assert done
    assert own[:].tolist() == b2array.open(own.url)[:].tolist() == [7, 1, 2, 3, 4, 5, 6, 8]


@LAYOUTS
def test_a_member_is_written_although_its_group_has_lost_its_manifest(url: str, layout: Any) -> None:
    made(url, layout)
    open_store(url).delete([MANIFEST])
    b2array.open(f"{url}/x.b2nd", "r+")[0] = 7
    with open_group(url, "r+").transaction() as changes:
        changes["x"][1] = 8
    assert b2array.open(f"{url}/x.b2nd")[:2].tolist() == [7, 8]


@LAYOUTS
def test_a_member_is_not_written_while_its_manifest_cannot_be_read(url: str, layout: Any) -> None:
    made(url, layout)
    good = bytes(open_store(url).head([MANIFEST], 2**20)[0].data)  # type: ignore[union-attr]
    own = b2array.open(f"{url}/x.b2nd", "r+")
    open_store(url).replace(MANIFEST, good[: len(good) // 2])
    with pytest.raises(FormatError, match="manifest"):
        own[0] = 7
    open_store(url).replace(MANIFEST, good)
    own[0] = 7
    assert b2array.open(own.url)[0] == 7


@pytest.mark.costly
@LAYOUTS
def test_a_transaction_commits_although_another_thread_keeps_writing_its_member(
    url: str, layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_LONGEST_PAUSE", 0.05)
    group = made(url, layout)
    is_over, written, failures = threading.Event(), [0.0], []

    def write() -> None:
        x = b2array.open(f"{url}/x.b2nd", "r+")
        try:
            while not is_over.is_set():
                x[-1] = written[0] + 1
                written[0] += 1
        except BaseException as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for n in range(3):
            begun = written[0]
            while written[0] < begun + 3:  # it is at work
                time.sleep(0.001)
            with group.transaction() as changes:
                changes["x"][0] = n
    finally:
        is_over.set()
        thread.join(60)
    assert not failures
    assert b2array.open(f"{url}/x.b2nd")[:].tolist() == [2, *range(1, 7), written[0]]


@LAYOUTS
def test_a_transaction_fails_at_once_if_another_writer_has_changed_the_same_items(
    url: str, layout: Any, operations: Operations
) -> None:
    group = made(url, layout)
    x = b2array.open(f"{url}/x.b2nd", "r+")
    written: list[int] = []

    def write_x(_: int, name: str, call: Callable[[], object]) -> object:
        if name == "replace" and not written:
            written.append(1)
            x[0] = 8
        return call()

    def change() -> None:
        with group.transaction() as changes:
            changes["x"][0] = 7

    with pytest.raises(ConflictError, match="chunks"):
        operations.watch(change, write_x)
    assert len(operations.names) < 40
    assert b2array.open(x.url)[0] == 8


@pytest.mark.costly
@LAYOUTS
@pytest.mark.parametrize("in_group", [True, False])
def test_an_aborted_move_does_not_affect_a_concurrent_transaction(
    url: str, layout: Any, operations: Operations, *, in_group: bool
) -> None:
    def write_and_move(url: str) -> None:
        b2array.open(f"{url}/x.b2nd", "r+")[2] = 6
        with suppress(KeyboardInterrupt), open_group(url, "r+").transaction() as changes:
            changes.move("x", "z")
            raise KeyboardInterrupt

    def change(group: b2array.Group) -> None:
        with group.transaction() as changes:
            changes["x"][0] = changes["y"][0] = 7

    for moment in range(100):
        group = made(f"{url}/{moment}", layout, in_group=in_group)
        b2array.open(f"{group.url}/x.b2nd", "r+")[1] = 5
        if not operations.meets(moment, partial(change, group), partial(write_and_move, group.url)):
            break
        found = open_group(group.url)
        assert (found["x"][:3].tolist(), found["y"][0]) == ([7, 5, 6], 7), moment
    else:
        pytest.fail("the transaction took more operations than were looked at")


def test_a_transaction_that_begins_during_a_commit_starts_from_its_result(
    url: str, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = Operations()
    others.listen(type(open_store(url)), monkeypatch)

    def change(group: b2array.Group) -> None:
        with group.transaction() as changes:
            changes["x"][0] = changes["y"][0] = 50

    def kill(_: int, __: str, call: Callable[[], object]) -> object:
        if "replace" in others.names[:-1]:
            raise Killed  # after the commit, and before the log is carried out
        return call()

    def commit(group: b2array.Group) -> None:
        with suppress(Killed):
            others.watch(partial(change, group), kill)

    for moment in range(100):
        group = made(f"{url}/{moment}", "contiguous")
        change(group)
        group["x"][0] = group["y"][0] = 0
        change(group)
        transaction = open_group(group.url, "r+").transaction()
        handles: list[b2array.NDArray] = []

        def begin(transaction: Any = transaction, handles: Any = handles) -> None:
            changes = transaction.__enter__()
            handles.extend(changes[name] for name in "xy")

        has_met = operations.meets(moment, begin, partial(commit, group))
        with open_group(group.url, "r+").transaction():
            pass  # whoever begins to write carries the log out
        for handle in handles:
            handle[3] = 53
        transaction.__exit__(None, None, None)
        found = open_group(group.url)
        assert [found[name][n] for name in "xy" for n in (0, 3)] == [50, 53] * 2, moment
        if not has_met:
            break
    else:
        pytest.fail("the transaction took more operations than were looked at")


# Members that no commit of the group has written, as after a copy of files to the store.


def by_url(url: str, name: str) -> list[float] | None:
    """Read what each URL of a name shows; None if nothing is there."""
    found = None
    for suffix in ("b2nd", "b2f"):
        with suppress(FileNotFoundError):
            found = b2array.open(f"{url}/{name}.{suffix}")[...].tolist()
    return found


def delete(group: b2array.Group) -> None:
    del group["x"]


def replace(group: b2array.Group) -> None:
    group["x"] = np.full(2, 7.0)


def replace_by_the_other_layout(group: b2array.Group) -> None:
    other = "sparse" if group["x"].info["layout"] == "contiguous" else "contiguous"
    group.create("x", data=np.full(2, 7.0), layout=other, overwrite=True)


def delete_among_others(group: b2array.Group) -> None:
    with group.transaction() as changes:
        del changes["x"]
        changes["y"][0] = 9


def move(group: b2array.Group) -> None:
    group.move("x", "z")


FIRST = {delete: None, replace: [7, 7], replace_by_the_other_layout: [7, 7], delete_among_others: None, move: None}


@LAYOUTS
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("locks", [True, False])
def test_the_first_commit_of_a_group_leaves_nothing_of_what_it_deletes(
    first: Callable[[b2array.Group], None],
    layout: Any,
    locks: bool,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if locks:
        monkeypatch.undo()  # as memory is: with locks
    for name in ("x", "y"):
        b2array.asarray(np.arange(4.0), url=f"{url}/{name}.b2nd" + "/" * (layout == "sparse"), layout=layout)
    first(open_group(url, "r+"))
    assert by_url(url, "x") == FIRST[first]
    group = open_group(url, "r+")
    assert ("x" in group) == (FIRST[first] is not None)
    group.create("x", data=[5.0], overwrite=True)
    assert by_url(url, "x") == [5]


@LAYOUTS
@pytest.mark.parametrize("change", [delete, replace, replace_by_the_other_layout, move])
def test_a_member_that_is_deleted_by_a_killed_writer_cannot_be_opened_or_written_by_its_url(
    url: str, layout: Any, change: Callable[[b2array.Group], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = made(url, layout, in_group=False)
    group["y"][0] = 5  # the group has a manifest, with a row of x without a revision
    own = b2array.open(f"{url}/x.b2nd", "r+")

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(in_bucket.Bucket, "publish", die)
        with suppress(Killed):
            change(open_group(url, "r+"))
    assert by_url(url, "x") == FIRST.get(change)
    with pytest.raises(ConflictError):
        own[0] = 3
    group = open_group(url, "r+")
    group.create("x", data=[5.0], overwrite=True)
    assert by_url(url, "x") == [5]


@pytest.mark.costly
@LAYOUTS
@pytest.mark.parametrize("change", [delete, replace, move, delete_among_others])
def test_a_writer_by_url_is_not_acknowledged_once_its_array_is_deleted(
    url: str, layout: Any, change: Callable[[b2array.Group], None], operations: Operations
) -> None:
    moments = 0
    while True:
        place = url.replace(".b2d", f"-{moments}.b2d")
        made(place, layout, in_group=False)["y"][0] = 5
        own, row = b2array.open(f"{place}/x.b2nd", "r+"), (manifest(place).rows or {})["x"]
        acknowledged, late = [], []

        def write() -> None:
            late.append((manifest(place).rows or {}).get("x") != row)  # noqa: B023
            with suppress(ConflictError):
                own[0] = 3  # noqa: B023
                acknowledged.append(True)  # noqa: B023

        group, refused = open_group(place, "r+"), False
        try:
            met = operations.meets(moments, lambda: change(group), write)  # noqa: B023
        except ConflictError:
            met = refused = True
        if not met:
            break
        moments += 1
        assert not (acknowledged and late[0])
        if acknowledged and (refused or change is move):
            assert open_group(place)["x" if refused else "z"][0] == 3
    assert moments > 3


@LAYOUTS
def test_a_lost_answer_below_another_commit_leaves_nothing_of_a_deleted_member(
    url: str, layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(url, layout)
    group, other = open_group(url, "r+"), open_group(url, "r+")
    kind, lost = type(open_store(url)), [True]
    replaced = kind.replace

    def lose(store: Any, name: str, *arguments: Any, **options: Any) -> Any:
        stamp = replaced(store, name, *arguments, **options)
        if name == MANIFEST and lost:
            lost.clear()
            other["y"][1] = 8
            raise ConflictError("the answer was lost; the repeated request was refused")
        return stamp

    monkeypatch.setattr(kind, "replace", lose)
    del group["x"]
    assert by_url(url, "x") is None
    assert not [path for path in open_store(url).walk() if path in ("x.b2nd", "x.b2nd/chunks.b2frame")]
    assert open_group(url)["y"][1] == 8


def test_a_member_that_is_moved_and_made_again_was_not_changed_meanwhile(url: str) -> None:
    made(url, "sparse")
    with pytest.raises(ConflictError), open_group(url, "r+").transaction() as changes:  # noqa: PT012
        changes.move("x", "z")
        changes.create("x", data=[1.0])
        open_group(url, "r+")["x"][0] = 5
    assert open_group(url)["x"][0] == 5


def test_a_conflict_elsewhere_does_not_refuse_the_adoption_of_what_was_read(url: str, operations: Operations) -> None:
    moments = 0
    while True:
        place = url.replace(".b2d", f"-{moments}.b2d")
        made(place, "sparse", in_group=False).create("w", data=[1.0])

        def read_and_write() -> None:
            with open_group(place, "r+").transaction() as changes:  # noqa: B023
                changes["y"][0] = changes["x"][1] + 6

        def write() -> None:
            open_group(place, "r+")["w"] = [2.0]  # noqa: B023

        if not operations.meets(moments, read_and_write, write):
            break
        moments += 1
        assert open_group(place)["y"][0] == 7
    assert moments > 3


def snapshot(group: b2array.Group) -> None:
    group.snapshot("s")


def fill(group: b2array.Group) -> None:
    group["x"][0] = 7


def fill_by_url(group: b2array.Group) -> None:
    b2array.open(f"{group.url}/x.b2nd", "r+")[0] = 7


@pytest.mark.parametrize("in_group", [True, False])
@pytest.mark.parametrize("change", [snapshot, fill, fill_by_url])
def test_an_object_in_place_of_a_sparse_array_is_a_conflict_and_no_error_of_the_store(
    url: str, change: Callable[[b2array.Group], None], operations: Operations, *, in_group: bool
) -> None:
    moments = 0
    while True:
        place = url.replace(".b2d", f"-{moments}.b2d")
        group = made(place, "sparse", in_group=in_group, names="x")  # so one thread does everything

        def replace_by_url() -> None:
            b2array.asarray([2.0], url=f"{place}/x.b2nd", layout="contiguous", overwrite=True)  # noqa: B023

        possible = [[2.0], [7.0]]
        try:
            met = operations.meets(moments, partial(change, group), replace_by_url)
        except ConflictError:
            met, possible = True, [[2.0]]
        if not met:
            break
        moments += 1
        assert by_url(place, "x") in possible
        assert open_group(place)["x"][...].tolist() in possible
    assert moments > 1


def delete(group: b2array.Group) -> None:
    del group["x"]


def move(group: b2array.Group) -> None:
    group.move("x", "z")


def replace_by_other(group: b2array.Group) -> None:
    group.create("x", data=np.full(8, 5.0), chunks=(2,), overwrite=True)


def refuse(name: str, call: Callable[[], Any]) -> Any:
    """Answer a read as a server does that does not say whether an object exists; do what is no read."""
    refusal = HiddenError("the server refuses")
    if name == "head":
        return [refusal for _ in call()]
    if name in READS:
        raise refusal
    return call()


@LAYOUTS
@pytest.mark.parametrize("change", [delete, move, replace_by_other])
def test_a_member_that_cannot_be_read_to_adopt_it_is_not_deleted(
    url: str, layout: Any, change: Callable[[b2array.Group], None], operations: Operations
) -> None:
    outcomes = set()
    for moment in range(4):
        place = url.replace(".b2d", f"-{moment}.b2d")
        made(place, layout, in_group=False)
        late, failure = b2array.open(f"{place}/x.b2nd", "r+"), None
        open_group(place, "r+")["y"][0] = 7  # the manifest lists x, which notes no group
        group = open_group(place, "r+")

        def meet(number: int, name: str, call: Callable[[], Any], first: int = moment, late: Any = late) -> Any:
            """Refuse reads from a moment on, and let another writer act between the commit and what follows."""
            if name == "delete":
                with pytest.raises(ConflictError):
                    late[0] = 9
            return call() if number < first else refuse(name, call)

        try:
            operations.watch(partial(change, group), meet)
        except (OSError, ConflictError, ChunkMissingError) as error:
            failure = error
        outcomes.add(failure is None)
        shown = {name: array[0] for name, array in open_group(place).items() if name != "y"}
        assert (shown == {"x": 0.0}) == (failure is not None)
    assert outcomes == {True, False}


def test_reads_that_a_server_refuses_do_not_say_that_anything_is_gone(url: str, operations: Operations) -> None:
    x = made(url, "sparse")["x"]
    refused = (ChunkMissingError, PermissionError)
    for act in (lambda: x[...], lambda: x.__setitem__(0, 9), x.refresh):
        with pytest.raises(refused, match=r"none that may be read|the server refuses"):
            operations.watch(act, lambda _, name, call: refuse(name, call))
    assert open_group(url)["x"][...].tolist() == np.arange(8.0).tolist()


def change_all(url: str) -> None:
    """Commit a transaction that deletes a member, changes two, and makes one."""
    with open_group(url, "r+").transaction() as changes:
        del changes["a"]
        changes["x"][...] = 7
        changes["y"][...] = 7
        changes["z"] = [7.0]


BEFORE, AFTER = {"a": 0.0, "x": 0.0, "y": 0.0}, {"x": 7.0, "y": 7.0, "z": 7.0}


def items(place: str) -> Iterator[tuple[str, Any]]:
    """Return the members of a group."""
    yield from open_group(place).items()


def walk(place: str) -> Iterator[tuple[str, Any]]:
    """Return the members of a group."""
    yield from open_group(place).walk()


def items_through_outer_group(place: str) -> Iterator[tuple[str, Any]]:
    """Return the members of a group as a group around it shows them."""
    outer, _, name = place.rpartition("/")
    group = open_group(outer)
    for each in [*group[name]]:
        yield each, group[f"{name}/{each}"]


def items_in_transaction(place: str) -> Iterator[tuple[str, Any]]:
    """Return the members of a group in a transaction that changes nothing."""
    with open_group(place, "r+").transaction() as changes:
        yield from changes.items()


@LAYOUTS
@pytest.mark.parametrize("has_manifest", [True, False])
@pytest.mark.parametrize("look", [items, walk, items_through_outer_group, items_in_transaction])
def test_readers_of_members_that_note_no_group_see_all_of_its_commit_or_nothing(
    url: str,
    layout: Any,
    operations: Operations,
    look: Callable[[str], Iterator[tuple[str, Any]]],
    *,
    has_manifest: bool,
) -> None:
    moments, shown = 0, []
    while True:
        place = url.replace(".b2d", f"-{moments}.b2d/inside")
        made(place, layout, in_group=False, names="axy")
        if has_manifest:  # it lists the members, which do not note it
            open_group(place, "r+").attrs["k"] = 1
        found: dict[str, float] = {}

        def read(place: str = place, found: dict[str, float] = found) -> None:
            found.update({name: array[0] for name, array in look(place)})

        try:
            if not operations.meets(moments, read, partial(change_all, place)):
                break
            shown.append(found)
        except ConflictError:
            shown.append({})
        moments += 1
        assert shown[-1] in (BEFORE, AFTER, {})
        # What was refused is there for the next look.
        assert {name: array[0] for name, array in look(place)} == AFTER
    assert shown[0] == AFTER
    assert moments > 2


@LAYOUTS
@pytest.mark.parametrize("is_open", [True, False])
def test_an_outer_group_shows_what_an_inner_group_lists_although_older_frames_are_in_the_place(
    url: str, layout: Any, operations: Operations, *, is_open: bool
) -> None:
    place = f"{url}/inside"
    made(place, layout, in_group=False, names="xyz")
    group = open_group(url)
    if is_open:  # it does not know yet that there is a group inside
        assert [*group["inside"]] == ["x", "y", "z"]
    memory = fsspec.filesystem("memory")
    published = {path: memory.cat(path) for name in "xz" for path in memory.find(f"{place}/{name}.b2nd")}
    with open_group(place, "r+").transaction() as changes:
        for each in "xyz":
            changes[each][...] = 7
    memory.pipe(published)  # somebody puts older objects in the place of two members
    if is_open:
        assert group["inside/x"][0] == 0  # nothing says yet that it has changed
        for name in "yz":
            with pytest.raises(ConflictError):
                group[f"inside/{name}"]
        group.refresh()
    assert {name: group[f"inside/{name}"][0] for name in "xyz"} == dict.fromkeys("xyz", 7.0)


@LAYOUTS
@pytest.mark.parametrize("cleaned", ["", "/inside", "/inside/x.b2nd"])
def test_vacuum_keeps_what_a_group_needs_although_older_frames_are_in_the_place(
    url: str, layout: Any, cleaned: str, operations: Operations
) -> None:
    place = f"{url}/inside"
    made(place, layout, in_group=False)
    memory = fsspec.filesystem("memory")
    published = {path: memory.cat(path) for path in memory.find(f"{place}/x.b2nd")}
    with open_group(place, "r+").transaction() as changes:
        changes["x"][...] = 7
    memory.pipe(published)
    b2array.vacuum(f"{url}{cleaned}", grace=0)
    assert open_group(place)["x"][...].tolist() == [7.0] * 8
    if layout == "sparse":  # the old chunks are gone
        assert b2array.open(f"{place}/x.b2nd")[...].tolist() == [7.0] * 8


def test_vacuum_cleans_an_array_beside_an_embedding_frame_that_cannot_be_read(url: str, operations: Operations) -> None:
    a = b2array.asarray(np.zeros(8), url=f"{url}/x.b2nd", chunks=(2,), layout="sparse")
    a[...] = 7
    fsspec.filesystem("memory").pipe(f"{url}/embed.b2e", b"of other software")
    assert len(b2array.vacuum(a.url, grace=0).removed) >= 4
    assert b2array.open(a.url)[...].tolist() == [7.0] * 8


@LAYOUTS
def test_who_may_not_read_the_manifest_of_an_inner_group_reads_members_that_note_no_group(
    url: str, layout: Any, operations: Operations
) -> None:
    place = f"{url}/inside"
    group = made(place, layout, in_group=False)
    group["x"][0] = 7
    outer, kind = open_group(url), type(open_store(url))
    read = kind.gather

    def gather(store: Any, names: Any, *rest: Any, **options: Any) -> Any:
        if MANIFEST in str(names):
            raise PermissionError("Access Denied")
        return read(store, names, *rest, **options)

    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, "gather", gather)
            assert outer["inside/y"][3] == 3
        outer.refresh()
    assert outer["inside/x"][0] == 7


@LAYOUTS
def test_a_transaction_reads_members_that_are_later_than_a_manifest_that_was_put_back(
    url: str, layout: Any, operations: Operations
) -> None:
    group = made(url, layout, in_group=False)
    group.attrs["k"] = 1
    memory = fsspec.filesystem("memory")
    earlier = memory.cat(f"{url}/{MANIFEST}")
    with group.transaction() as changes:
        changes["x"][0], changes["y"][0] = 7, 7
    memory.pipe(f"{url}/{MANIFEST}", earlier)
    with open_group(url, "r+").transaction() as changes:
        assert changes["y"][0] == 7
        changes["x"][1] = 8
    assert open_group(url)["x"][:3].tolist() == [7, 8, 2]


@LAYOUTS
def test_an_outer_group_shows_what_other_software_has_put_in_place_of_a_deleted_member(
    url: str, layout: Any, operations: Operations
) -> None:
    place = f"{url}/inside"
    group = made(place, layout, in_group=False)
    with group.transaction() as changes:
        del changes["y"]
        changes["x"][...] = 7
    memory = fsspec.filesystem("memory")
    made(f"{url}/elsewhere", layout, in_group=False, names="y")
    for path in memory.find(f"{url}/elsewhere"):
        memory.pipe(path.replace("elsewhere", "inside"), memory.cat(path))
    outer = open_group(url)
    for _ in range(2):
        assert (outer["inside/y"][3], outer["inside/x"][3]) == (3, 7)
        outer.refresh()


@LAYOUTS
def test_a_copy_of_a_group_without_its_manifest_is_read(url: str, layout: Any) -> None:
    made(url, layout)
    change = open_group(url, "r+")
    change["x"][0] = 7
    memory, copy = fsspec.filesystem("memory"), url.replace(".b2d", "-copy.b2d")
    memory.copy(url, copy, recursive=True)
    memory.rm(f"{copy}/{MANIFEST}")
    assert {name: array[0] for name, array in open_group(copy).items()} == {"x": 7.0, "y": 0.0}


def kill(_: int, name: str, call: Callable[[], Any]) -> Any:
    """Kill a writer of a group before the write of the manifest, which replaces the one before."""
    if name == "replace":
        raise Killed
    return call()


@LAYOUTS
@pytest.mark.parametrize("leftovers", [("sparse", "contiguous"), ("contiguous", "sparse")])
def test_what_killed_writers_left_in_both_layouts_is_not_in_the_way(
    layout: Any, leftovers: tuple[Any, Any], cloud_of: Callable[[str], Cloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    # In memory as on disks, a name is an object or has objects below it.
    cloud, operations = cloud_of("gcs"), Operations()
    options = {"storage_options": cloud.options}
    url = cloud.make_bucket(f"left-{uuid4()}") + "/g.b2d"
    operations.listen(type(open_store(url, **options)), monkeypatch)
    open_group(url, "w", **options)["y"] = [0.0]
    for each in leftovers:
        group = open_group(url, "r+", **options)
        create = partial(group.create, "x", data=[1.0], layout=each)
        with pytest.raises(Killed):
            operations.watch(create, kill)
    open_group(url, "r+", **options).create("x", data=[2.0], layout=layout)
    for found in (open_group(url, **options)["x"], b2array.open(f"{url}/x.b2nd", **options)):
        assert found[...].tolist() == [2.0]
    del open_group(url, "r+", **options)["x"]
    with pytest.raises(FileNotFoundError):
        b2array.open(f"{url}/x.b2nd", **options)
