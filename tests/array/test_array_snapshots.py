"""Snapshots of arrays: states that keep their names while the array goes on."""

from __future__ import annotations

import pickle
import shutil
import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import blosc2
import fsspec
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from lengths import examples

import b2array
from b2array import config
from b2array.catalog.intact import load_intact_state
from b2array.errors import (
    ChecksumError,
    ConflictError,
    FormatError,
    LimitError,
    ReadOnlyError,
    SnapshotLostError,
)
from b2array.format.ledger import KEPT, Kept, Ledger, object_name
from b2array.frame.kept_states import ledger_in, load_kept_state

LAYOUTS = ["contiguous", "sparse"]
X = np.random.default_rng(1).integers(0, 9999, (40, 50))
NOISE = np.random.default_rng(2).bytes(2**13)
"""With an attribute of so many bytes, a kept state of a directory has an object for itself."""
pytestmark = pytest.mark.filterwarnings("ignore:.*rewritten with every change")


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture(params=["file", "memory"])
def url(request, tmp_path, layout):
    if request.param == "file":
        yield str(tmp_path / "a.b2nd")
    else:
        yield f"memory://{tmp_path.name}/a.b2nd"
        fsspec.filesystem("memory").store.clear()


@pytest.fixture
def a(url, layout):
    return b2array.asarray(X, url=url, chunks=(10, 10), blocks=(5, 5), layout=layout, attrs={"t": 1}, dims=("y", "x"))


def at(url, name, **options):
    """Open a snapshot by its name."""
    return b2array.open(url, at=name, **options)


# What a snapshot shows.


def test_a_snapshot_shows_the_state_that_it_was_made_of(a, url):
    a.snapshot("one", "the first", {"who": "me"})
    a[3:15, :20] = 7
    a.resize((60, 30))
    a.attrs["t"], a.attrs["u"] = 2, [1]
    a.dims = None
    kept = at(url, "one")
    assert (kept[...] == X).all()
    assert (kept.shape, dict(kept.attrs), kept.dims, kept.mode) == (X.shape, {"t": 1}, ("y", "x"), "r")
    assert (kept[12, 5:31:2] == X[12, 5:31:2]).all()
    assert kept.sum() == X.sum()


def test_snapshots_are_listed_with_what_is_known_of_them(a, url):
    before = datetime.now(UTC)
    a.snapshot("one", "the first", {"who": "me", "n": [1, 2]})
    a[0] = 1
    a.append(np.zeros((3, 50), int))
    a.snapshot("two")
    one, two = b2array.open(url).snapshots
    assert (one.name, one.message, one.attrs, one.shape) == ("one", "the first", {"who": "me", "n": [1, 2]}, (40, 50))
    assert (two.name, two.message, two.attrs, two.shape) == ("two", "", {}, (43, 50))
    assert before - timedelta(seconds=1) <= one.time <= two.time
    assert at(url, "one").generation == one.generation != two.generation == at(url, "two").generation
    assert "the first" in str(one)


def test_a_snapshot_in_a_transaction_is_the_state_that_its_commit_makes(a, url):
    with a.transaction():
        a[0] = 5
        a.snapshot("half")
        a[1] = 6
    assert (at(url, "half")[:2] == [[5], [6]]).all()
    assert [each.name for each in a.snapshots] == ["half"]


def test_a_transaction_that_fails_makes_no_snapshot(a, url):
    def fail():
        with a.transaction():
            a.snapshot("never")
            a[0] = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()
    assert a.snapshots == b2array.open(url).snapshots == ()


def test_a_change_that_fails_in_a_transaction_takes_only_its_own_snapshot_along(a, url):
    with a.transaction():
        a.snapshot("one")
        with pytest.raises(FileExistsError):
            a.snapshot("one")
        a[0] = 1
    assert [each.name for each in b2array.open(url).snapshots] == ["one"]


def test_a_snapshot_of_zeros_nan_and_nothing(url, layout):
    a = b2array.full((0, 4), np.nan, url=url, chunks=(2, 4), layout=layout)
    a.snapshot("empty")
    a.resize((6, 4))
    a.snapshot("holes")
    a[...] = 1
    assert at(url, "empty").shape == (0, 4)
    assert np.isnan(at(url, "holes")[...]).all()
    a.restore("holes")
    assert np.isnan(a[...]).all()
    if layout == "contiguous":
        with pytest.raises(LimitError, match=r"no room for the chunks of the snapshots \['holes'\]"):
            a.restore("empty")
        assert np.isnan(a[...]).all()
        a.drop_snapshot("holes")
    a.restore("empty")
    assert a.shape == (0, 4)


def test_a_snapshot_of_a_single_item(url, layout):
    a = b2array.asarray(5, url=url, layout=layout)
    a.snapshot("five")
    a[()] = 6
    assert at(url, "five")[()] == 5
    assert a.diff("five") == [()]


def test_super_chunks_have_snapshots(url, layout):
    s = b2array.create_schunk(url, chunksize=80, typesize=8, layout=layout)
    s.append_data(bytes(range(80)))
    s.snapshot("one")
    s.append_data(bytes(80))
    s.delete_chunk(0)
    kept = b2array.open_schunk(url, at="one")
    assert kept.decompress_chunk(0) == bytes(range(80))
    assert s.snapshots[0].shape is None
    s.restore("one")
    assert s.nchunks == 1


def test_chunks_with_sizes_of_their_own_have_snapshots(url, layout):
    s = b2array.create_schunk(url, chunksize=0, typesize=1, layout=layout)
    s.append_data(b"abc")
    s.append_data(b"defgh")
    s.snapshot("two")
    s.update_data(0, b"x" * 9)
    assert [*b2array.open_schunk(url, at="two")] == [b"abc", b"defgh"]


# Opening.


def test_unknown_names_say_which_there_are(a, url):
    a.snapshot("spin-up")
    with pytest.raises(KeyError, match=r"no snapshot 'spinup'; it has 'spin-up'"):
        at(url, "spinup")
    with pytest.raises(KeyError, match="spin-up"):
        a.restore("spinup")
    with pytest.raises(KeyError, match="spin-up"):
        a.drop_snapshot("spinup")
    with pytest.raises(KeyError, match="spin-up"):
        a.diff("spinup")


def test_a_second_snapshot_of_a_name_says_how_to_replace_the_first(a, url):
    a.snapshot("one")
    a[0] = 3
    with pytest.raises(FileExistsError, match="replace=True"):
        a.snapshot("one")
    a.snapshot("one", replace=True)
    assert (at(url, "one")[0] == 3).all()
    assert len(a.snapshots) == 1


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[2J", "x" * 256, "\udc80"])
def test_names_that_nobody_could_type_are_refused(a, name):
    with pytest.raises(ValueError, match="cannot name a snapshot"):
        a.snapshot(name)
    assert a.snapshots == ()


def test_arguments_of_wrong_types_are_refused(a):
    with pytest.raises(TypeError, match="names of snapshots are str"):
        a.snapshot(3)
    with pytest.raises(TypeError, match="message of a snapshot is str"):
        a.snapshot("x", 3)
    with pytest.raises(TypeError):
        a.snapshot("x", attrs={"a": object()})
    assert a.snapshots == ()


def test_a_snapshot_can_only_be_read(a, url):
    a.snapshot("one")
    for mode in "r+", "a", "w":
        with pytest.raises(ValueError, match="at='one' goes with mode 'r' alone"):
            at(url, "one", mode=mode)
    kept = at(url, "one")
    with pytest.raises(ReadOnlyError):
        kept[0] = 1
    with pytest.raises(ReadOnlyError):
        b2array.open_schunk(url, "r+", at="one")


def test_a_snapshot_pickles_with_its_checksums(a, url):
    a.snapshot("one")
    a[...] = 0
    restored = pickle.loads(pickle.dumps(at(url, "one")))
    assert (restored[...] == X).all()
    state = restored._handle.revision.state
    assert state.records.all()
    assert state.sizes[:, 0].all()


def test_dask_reads_a_snapshot(a, url):
    a.snapshot("one")
    a[...] = 0
    kept = at(url, "one").to_dask()
    assert int(kept.sum().compute()) == X.sum()
    assert kept.name != b2array.open(url).to_dask().name


@pytest.mark.costly
def test_an_open_snapshot_stays_readable_while_the_array_goes_on(a, url, layout):
    a.snapshot("one")
    kept = at(url, "one")
    for n in range(30):
        a[n % 40] = n
    if url.startswith("memory:") and layout == "contiguous":  # the object is another one now
        with pytest.raises(ConflictError, match="refresh"), config.using(cache_bytes=0):
            kept[...]
        kept.refresh()
    assert (kept[...] == X).all()
    kept.refresh()
    assert (kept[...] == X).all()


def test_an_open_snapshot_that_was_dropped_is_a_conflict(a, url):
    a.snapshot("one")
    kept = at(url, "one")
    a.drop_snapshot("one")
    with pytest.raises(ConflictError, match="was dropped"):
        kept.refresh()


def test_an_open_snapshot_finds_its_chunks_in_a_file_that_was_packed_again(tmp_path):
    url = str(tmp_path / "a.b2nd")
    a = b2array.asarray(X, url=url, chunks=(10, 10))
    a.snapshot("one")
    a[...] = 0
    kept = at(url, "one")
    b2array.repack(url)
    # The old file is still open, and a new one has other places.
    assert (kept[...] == X).all()
    kept.close()
    with pytest.raises(ConflictError, match="refresh"), config.using(cache_bytes=0):
        kept[...]
    kept.refresh()
    assert (kept[...] == X).all()


# Going back.


def test_going_back_is_a_commit_and_keeps_all_snapshots(a, url):
    a.snapshot("one")
    a[...] = 1
    a.resize((7, 50))
    a.attrs.clear()
    a.snapshot("two")
    generation = a.generation
    a.restore("one")
    assert a.generation != generation
    other = b2array.open(url)
    assert (other[...] == X).all()
    assert (dict(other.attrs), other.dims) == ({"t": 1}, ("y", "x"))
    assert [each.name for each in other.snapshots] == ["one", "two"]
    a.restore("two")
    assert (a[...] == np.ones((7, 50))).all()
    assert b2array.verify(url, deep=True).ok


def test_going_back_joins_a_transaction(a, url):
    a.snapshot("one")
    a[...] = 1
    with a.transaction():
        a[5] = 9
        a.restore("one")
        assert (a[5] == X[5]).all()
        a[6] = 4
        assert (b2array.open(url)[...] == 1).all()
    expected = X.copy()
    expected[6] = 4
    assert (b2array.open(url)[...] == expected).all()


def test_going_back_copies_no_chunk(tmp_path):
    url = tmp_path / "a.b2nd"
    a = b2array.asarray(np.random.default_rng(0).random((200, 500)), url=url, chunks=(20, 500))
    a.snapshot("one")
    a[...] = 0
    before = url.stat().st_size
    a.restore("one")
    assert url.stat().st_size - before < 20_000 < before // 20


# Two writers.


def test_a_snapshot_keeps_the_state_that_its_maker_has_seen(a, url):
    other = b2array.open(url, "r+")
    other[0] = 3
    with pytest.raises(ConflictError, match="call refresh"):
        a.snapshot("seen")
    assert b2array.open(url).snapshots == ()
    a.refresh()
    a.snapshot("seen")
    assert (at(url, "seen")[0] == 3).all()


def test_two_snapshots_of_one_name_cannot_both_happen(a, url):
    other = b2array.open(url, "r+")

    def collide():
        with other.transaction():
            other[39] = 1
            other.snapshot("one")
            a.snapshot("one")

    with pytest.raises((ConflictError, FileExistsError)):
        collide()
    assert [each.name for each in b2array.open(url).snapshots] == ["one"]
    assert (b2array.open(url)[...] == X).all()


def test_changes_of_others_and_snapshots_merge(a, url):
    other = b2array.open(url, "r+")
    a.snapshot("one")
    other[0] = 3  # on top of the snapshot, which it has not seen
    a.refresh()
    a.drop_snapshot("one")
    other[1] = 4
    assert (b2array.open(url)[:2] == [[3], [4]]).all()
    assert b2array.open(url).snapshots == ()


def test_forks_make_no_snapshots(a):
    with a.transaction() as changes:
        fork = changes.fork()
        for act in (lambda: fork.snapshot("x"), lambda: fork.restore("x"), lambda: fork.drop_snapshot("x")):
            with pytest.raises(ValueError, match="a fork cannot make or drop snapshots"):
                act()
        changes.merge(fork)


# Differences.


def test_differences_are_the_boxes_that_were_written(a):
    a.snapshot("one")
    assert a.diff("one") == []
    a[15, 25] = 0
    a[35:, :] = 0
    assert a.diff("one") == [(slice(10, 20), slice(20, 30)), (slice(30, 40), slice(0, 50))]
    a.snapshot("two")
    a[0, 0] = 1
    assert a.diff("one", "two") == [(slice(10, 20), slice(20, 30)), (slice(30, 40), slice(0, 50))]
    assert a.diff("two") == [(slice(0, 10), slice(0, 10))]


def test_differences_of_shapes_lie_in_the_larger_one(a):
    a.snapshot("one")
    a.resize((45, 48))
    boxes = a.diff("one")
    covered = np.zeros((45, 50), bool)
    for box in boxes:
        assert not covered[box].any()
        covered[box] = True
    assert covered[40:].all()
    assert covered[:, 48:].all()
    assert not covered[:40, :40].any()


# What stays, and what goes.


def test_a_commit_leaves_the_chunks_of_snapshots_when_it_writes_the_file_again(tmp_path):
    url = str(tmp_path / "a.b2nd")
    noise = np.random.default_rng(0).random((100, 1000))
    a = b2array.asarray(noise, url=url, chunks=(10, 1000))
    a.snapshot("noise")
    for n in range(12):
        a[...] = np.random.default_rng(n + 1).random((100, 1000))
    assert Path(url).stat().st_size < 6 * noise.nbytes
    assert (at(url, "noise")[...] == noise).all()
    a.drop_snapshot("noise")
    a[...] = 0
    b2array.repack(url)
    assert Path(url).stat().st_size < 10_000


def test_a_file_is_not_written_again_because_of_what_snapshots_need(tmp_path):
    url = tmp_path / "a.b2nd"
    a = b2array.asarray(np.random.default_rng(0).random((100, 1000)), url=url, chunks=(10, 1000))
    a.snapshot("noise")
    a[...] = 0
    inode = url.stat().st_ino
    for n in range(20):
        a[n] = n
    assert url.stat().st_ino == inode


def test_vacuum_removes_what_no_snapshot_needs(tmp_path):
    url = str(tmp_path / "a.b2nd")
    a = b2array.asarray(X, url=url, chunks=(10, 10), layout="sparse", attrs={"noise": NOISE})
    a.snapshot("one")
    a[:10] = 1
    a[:10] = 2
    removed = b2array.vacuum(url, grace=0).removed
    assert len(removed) == 5
    assert (at(url, "one")[...] == X).all()
    a.drop_snapshot("one")
    removed = b2array.vacuum(url, grace=0).removed
    assert len(removed) == 6
    assert sum(name.endswith(KEPT) for name in removed) == 1
    assert b2array.verify(url, deep=True).ok


def test_repack_frees_what_a_dropped_snapshot_held(tmp_path):
    url = tmp_path / "a.b2nd"
    a = b2array.asarray(np.random.default_rng(0).random((100, 100)), url=url, chunks=(10, 100))
    a.snapshot("noise")
    a[...] = 0
    (info,) = a.snapshots
    assert 0.8 * 80_000 < info.nbytes < 1.2 * 80_000
    b2array.repack(url)
    assert url.stat().st_size > 60_000
    a.refresh()
    a.drop_snapshot("noise")
    b2array.repack(url)
    assert url.stat().st_size < 5_000


@pytest.mark.parametrize("change", [{}, {"chunks": (7, 9)}, {"cparams": "lz4"}, {"dtype": "f4"}])
def test_copies_have_the_snapshots(a, tmp_path, layout, change):
    a.snapshot("one", "the first", {"n": 1})
    a[...] = 1
    a.resize((50, 20))
    a.attrs["t"] = 2
    a.snapshot("two")
    second = a[...]
    a[3] = 5
    a.attrs["new"] = 1
    for n, kind in enumerate(LAYOUTS):
        url = str(tmp_path / f"copy{n}.b2nd")
        b2array.copy(a, url, layout=kind, **change)
        copy = b2array.open(url)
        assert (copy[...] == a[...]).all()
        assert dict(copy.attrs) == {"t": 2, "new": 1}
        assert [(each.name, each.message, each.attrs, each.shape) for each in copy.snapshots] == [
            ("one", "the first", {"n": 1}, (40, 50)),
            ("two", "", {}, (50, 20)),
        ]
        one, two = at(url, "one"), at(url, "two")
        assert (one[...] == X).all()
        assert (dict(one.attrs), one.dims) == ({"t": 1}, ("y", "x"))
        assert (two[...] == second).all()
        assert [each.time for each in copy.snapshots] == [each.time for each in a.snapshots]
        assert b2array.verify(url, deep=True).ok
        assert b2array.copy(a, str(tmp_path / f"bare{n}.b2nd"), snapshots=False, layout=kind, **change).snapshots == ()


def test_a_new_array_of_an_old_one_has_no_snapshots(a, url, tmp_path):
    a.snapshot("one")
    assert b2array.asarray(a, url=str(tmp_path / "new.b2nd")).snapshots == a.astype("f4").snapshots == ()


def test_a_copy_of_a_snapshot_is_an_array_like_others(a, url):
    a.snapshot("one")
    a[0] = 1
    copy = at(url, "one").copy()
    assert (copy[...] == X).all()
    copy[0] = 2
    assert copy.snapshots == ()


# Bytes.


@pytest.mark.slow
@pytest.mark.parametrize(("nchunks", "most"), [(2_000, 40_000), (10_000, 100_000)])
def test_snapshots_of_many_chunks_are_small(tmp_path, nchunks, most):
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2 ** rng.integers(1, 40, (nchunks, 1)), (nchunks, 64))
    a = b2array.asarray(values, url=str(tmp_path / "a.b2nd"), chunks=(1, 64), blocks=(1, 32))
    for n in range(3):
        a[rng.integers(0, nchunks, 50)] = n
        a.snapshot(f"s{n}")
    for entry in Ledger.unpack(a._handle.revision.state.annotations.kept).entries:
        assert entry.nbytes < most


def test_a_ledger_that_cannot_be_read_is_an_error_of_snapshots_alone(a, url):
    a.snapshot("one")
    for wrong in (b"\xc1", b"\x90", Ledger((Kept("x", 0.0, nbytes=16),)).pack()[:-1]):
        with pytest.raises(FormatError, match="ledger"):
            Ledger.unpack(wrong)


@pytest.mark.parametrize("times", [[float("nan")], [float("inf")], [-1e12], [1e300], [0.0, 0.0]])
def test_a_ledger_with_times_without_a_date_or_with_a_name_twice_is_refused(times):
    packed = Ledger(tuple(Kept("x", time, nbytes=16) for time in times)).pack()
    with pytest.raises(FormatError, match="kept state"):
        Ledger.unpack(packed)


def test_a_list_that_cannot_be_read_is_told_with_the_url(a):
    a.snapshot("one")
    state = a._handle.revision.state
    wrong = state.with_annotations(replace(state.annotations, kept=b"\x90"))
    held = replace(a._handle.revision, state=wrong)
    for look in (lambda: load_kept_state(held, "one"), lambda: load_intact_state(held, "one"), lambda: ledger_in(held)):
        with pytest.raises(FormatError, match=r"a\.b2nd: expected a ledger"):
            look()


def test_directories_have_a_few_kept_states_in_their_list(tmp_path):
    url = tmp_path / "a.b2nd"
    a = b2array.asarray(X, url=url, chunks=(10, 10), layout="sparse", attrs={"t": 0})
    for n in range(20):
        a[n] = a.attrs["t"] = n
        a.snapshot(f"s{n}")
    objects = len([*url.glob(f"*{KEPT}")])
    assert 0 < objects < 15
    for n in range(20):
        kept = at(url, f"s{n}")
        assert kept.attrs["t"] == kept[n, 0] == n
        assert (kept[n + 1 :] == X[n + 1 :]).all()
    for n in range(19):
        a.drop_snapshot(f"s{n}")
    b2array.vacuum(url, grace=0)
    assert len([*url.glob(f"*{KEPT}")]) == 1
    assert b2array.verify(url, deep=True).ok
    assert at(url, "s19")[19, 0] == 19


@pytest.mark.parametrize("where", [0, 40, -20, -1])
def test_a_damaged_index_of_a_snapshot_is_found(tmp_path, layout, where):
    url = str(tmp_path / "a.b2nd")
    a = b2array.asarray(X, url=url, chunks=(10, 10), layout=layout, attrs={"noise": NOISE})
    a.snapshot("one")
    a[0] = 1
    (entry,) = Ledger.unpack(a._handle.revision.state.annotations.kept).entries
    file, start = Path(url), a._handle.frame.header_len + entry.place
    if layout == "sparse":
        (file,) = Path(url).glob(f"*{KEPT}")
        start = 0
    content = bytearray(file.read_bytes())
    content[start + where % entry.nbytes] ^= 1
    file.write_bytes(content)
    with pytest.raises(FormatError, match="snapshot 'one'"):
        at(url, "one")
    report = b2array.verify(url)
    assert [problem.kind for problem in report.problems] == ["snapshot"]
    assert (b2array.open(url)[1:] == X[1:]).all()


def test_damaged_snapshots_are_listed_and_dropped_one_by_one(tmp_path, layout):
    url = str(tmp_path / "a.b2nd")
    a = b2array.asarray(X, url=url, chunks=(10, 10), layout=layout, attrs={"noise": NOISE})
    for name in ("one", "two", "three"):
        a.snapshot(name)
        a[0] += 1
    for entry in Ledger.unpack(a._handle.revision.state.annotations.kept).entries[:2]:
        file = Path(url, object_name(entry.place)) if layout == "sparse" else Path(url)
        content = bytearray(file.read_bytes())
        content[(0 if layout == "sparse" else a._handle.frame.header_len + entry.place) + 40] ^= 1
        file.write_bytes(content)
    a = b2array.open(url, "r+")
    assert [each.name for each in a.snapshots] == ["one", "two", "three"]
    assert all(each.nbytes for each in a.snapshots)
    a.drop_snapshot("one")
    a.drop_snapshot("two")
    assert (at(url, "three")[0] == X[0] + 2).all()
    b2array.repack(url)
    b2array.vacuum(url, grace=0)
    assert b2array.verify(url, deep=True).ok
    assert (at(url, "three")[0] == X[0] + 2).all()


def test_a_damaged_chunk_of_a_snapshot_is_found(tmp_path, layout):
    url = str(tmp_path / "a.b2nd")
    a = b2array.asarray(X, url=url, chunks=(10, 10), layout=layout)
    a.snapshot("one")
    place = a._handle.revision.locate(0)
    a[...] = 0
    file = Path(url) / place.name if place.name else Path(url)
    content = bytearray(file.read_bytes())
    content[place.start + 100] ^= 1
    file.write_bytes(content)
    with pytest.raises(ChecksumError):
        at(url, "one")[...]
    report = b2array.verify(url, deep=True)
    assert [(problem.kind, problem.chunk) for problem in report.problems] == [("snapshot", 0)]
    assert (b2array.open(url)[...] == 0).all()
    if layout == "contiguous":
        assert (b2array.open(url, "r+")[...] == 0).all()


def test_a_file_without_room_for_another_metalayer_refuses_snapshots(tmp_path):
    url = str(tmp_path / "full.b2nd")
    full = blosc2.asarray(np.arange(100), urlpath=url)
    for n in range(16):
        full.schunk.vlmeta[f"m{n}"] = n
    with pytest.raises(LimitError, match="no room"):
        b2array.open(url, "r+").snapshot("one")
    assert (blosc2.open(url)[...] == np.arange(100)).all()


# Beside other software.


def stock(url, mode="a"):
    return blosc2.open(url, mode=mode)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_stock_reads_the_latest_state_and_keeps_the_list(tmp_path, kind):
    url = str(tmp_path / "a.b2nd")
    a = b2array.asarray(X, url=url, chunks=(10, 10), layout=kind)
    a.snapshot("one")
    a[0] = 7
    assert (stock(url, "r")[0] == 7).all()
    held = stock(url)
    held.schunk.vlmeta["unit"] = "K"
    assert (at(url, "one")[...] == X).all()
    a.refresh()
    a[1] = 8
    assert [each.name for each in b2array.open(url).snapshots] == ["one"]
    assert (at(url, "one")[...] == X).all()


def check_intact_or_told(url, expected):
    """A snapshot shows what it was made of, or says that other software took its data."""
    try:
        kept = at(url, "one")
    except ConflictError as error:
        told = str(error)
    else:
        assert (kept[...] == expected).all()
        return
    assert "other software has changed the frame" in told
    with pytest.raises(ConflictError, match="other software"):
        b2array.open(url, "r+").restore("one")


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("values", ["noise", "zeros"])
def test_a_snapshot_whose_chunks_stock_took_says_so(tmp_path, kind, values):
    url = str(tmp_path / "a.b2nd")
    noise = np.random.default_rng(0).integers(0, 2**62, (40, 50))
    a = b2array.asarray(noise, url=url, chunks=(10, 50), layout=kind, cparams=b2array.CParams(filters=()))
    a.snapshot("one")
    held = stock(url)
    held[:10] = np.random.default_rng(1).integers(0, 2**62, (10, 50)) if values == "noise" else 0
    del held
    check_intact_or_told(url, noise)
    # After a commit of ours, nobody takes the snapshot for intact because ours was the last.
    b2array.open(url, "r+").attrs["x"] = 1
    check_intact_or_told(url, noise)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_difference_from_a_snapshot_whose_chunks_stock_took_is_told(tmp_path, kind):
    url = str(tmp_path / "a.b2nd")
    a = b2array.asarray(np.random.default_rng(0).random((40, 50)), url=url, chunks=(10, 50), layout=kind)
    a.snapshot("one")
    a.attrs["x"] = 1
    a.snapshot("two")
    held = stock(url)
    held[5:10] = 1  # the chunk gets smaller, and stays in its place
    del held
    a.refresh()
    for _ in range(2):
        for then in (None, "two"):
            with pytest.raises(ConflictError, match="other software"):
                a.diff("one", then)
        a.attrs["x"] = 2


@pytest.mark.parametrize("kind", LAYOUTS)
def test_snapshots_can_be_dropped_beside_one_that_stock_took(tmp_path, kind):
    url = str(tmp_path / "a.b2nd")
    rng = np.random.default_rng(0)
    a = b2array.asarray(rng.random((40, 50)), url=url, chunks=(10, 50), layout=kind)
    for name in ("one", "two", "three", "lost"):
        a[:10] = rng.random((10, 50))
        a.snapshot(name)
    three = at(url, "three")[...]
    held = stock(url)
    held[:5] = 1  # the chunk gets smaller, and in one file the index behind it is gone
    del held
    with pytest.raises(ConflictError, match="'lost'"):
        at(url, "lost")
    if kind == "contiguous":
        with pytest.raises(SnapshotLostError, match="'lost'"):
            b2array.repack(url)
    a = b2array.open(url, "r+")
    a.drop_snapshot("one")
    assert b2array.expire(url, keep_last=2) == ("two",)
    a.refresh()
    a.drop_snapshot("lost")
    values = a[...]
    b2array.repack(url)
    assert (b2array.open(url)[...] == values).all()
    assert (at(url, "three")[...] == three).all()
    assert b2array.verify(url, deep=True).ok


@pytest.mark.parametrize("commits", [0, 1])
def test_a_chunk_that_stock_took_never_gets_into_a_copy_and_never_counts_as_equal(tmp_path, layout, commits):
    url, copy = str(tmp_path / "a.b2nd"), str(tmp_path / "copy.b2nd")
    a = b2array.asarray(np.arange(40), url=url, chunks=(7,), layout=layout)
    a.snapshot("one")
    stock(url)[3] = 77
    for _ in range(commits):
        b2array.open(url, "r+")[30] = 5
    for act in (
        lambda: b2array.open(url).diff("one"),
        lambda: b2array.copy(url, copy),
        lambda: b2array.copy(url, copy, chunks=(9,)),
        lambda: at(url, "one"),
        lambda: b2array.open(url, "r+").restore("one"),
    ):
        with pytest.raises(ConflictError, match="'one'"):
            act()
    if layout == "contiguous":
        with pytest.raises(SnapshotLostError, match="snapshot 'one' is damaged; drop it"):
            b2array.repack(url)
    assert b2array.open(url)[3] == 77
    b2array.open(url, "r+").drop_snapshot("one")
    b2array.repack(url)
    assert b2array.open(url)[3] == 77


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_handle_that_shows_a_snapshot_whose_chunks_stock_took_says_so(tmp_path, kind):
    url = str(tmp_path / "a.b2nd")
    noise = np.random.default_rng(0).integers(0, 2**62, (40, 50))
    b2array.asarray(noise, url=url, chunks=(10, 50), layout=kind).snapshot("one")
    with config.using(cache_bytes=0):
        shown = at(url, "one")
        assert (shown[...] == noise).all()
        # They take as many bytes as before, in the same place.
        stock(url)[:10] = np.random.default_rng(1).integers(0, 2**62, (10, 50))
        with pytest.raises(SnapshotLostError, match="the snapshot 'one' was made, and took data of it"):
            shown[...]


@pytest.fixture
def one_thread():
    before = blosc2.set_nthreads(1)
    yield
    blosc2.set_nthreads(before)


@pytest.mark.usefixtures("one_thread")  # several threads store the blocks in any order, and then the head differs
def test_a_change_by_stock_that_shows_in_no_head_neither_counts_as_equal_nor_is_restored(tmp_path):
    url = str(tmp_path / "a.b2nd")
    items = np.arange(16000) // 4000
    blosc2.asarray(items, urlpath=url, chunks=(8000,), blocks=(1000,))
    b2array.open(url, "r+").snapshot("one")
    stock(url)[5000:6000] = 3  # the new chunk is as large as the old one, and so is each of its blocks
    assert (at(url, "one")[:1000] == items[:1000]).all()
    with pytest.raises(SnapshotLostError, match="'one'") as raised:
        at(url, "one")[5500]
    assert "block 5" in str(raised.value.__cause__)
    for act in (lambda: b2array.open(url).diff("one"), lambda: b2array.open(url, "r+").restore("one")):
        with pytest.raises(ConflictError, match="'one'"):
            act()


def test_a_repaired_directory_still_knows_that_stock_has_changed_it(tmp_path):
    url = str(tmp_path / "a.b2nd")
    b2array.asarray(np.arange(40), url=url, chunks=(7,), layout="sparse").snapshot("one")
    stock(url)[3] = 77
    place = b2array.open(url)._handle.revision.locate(4)
    Path(url, place.name).write_bytes(b"damaged")
    assert b2array.repair(url, backup=False).lost
    for act in (lambda: at(url, "one"), lambda: b2array.open(url).diff("one")):
        with pytest.raises(ConflictError, match="other software"):
            act()


def test_an_array_of_stock_gets_checksums_with_its_first_snapshot(tmp_path):
    url = str(tmp_path / "a.b2nd")
    blosc2.asarray(X, urlpath=url, chunks=(10, 10), blocks=(5, 5))
    a = b2array.open(url, "r+")
    a.snapshot("one")
    assert a._handle.revision.state.records.all()
    stock(url)[:20] = 3
    check_intact_or_told(url, X)
    assert (stock(url, "r")[:20] == 3).all()


def test_a_snapshot_opens_although_the_latest_index_is_damaged(tmp_path):
    url = tmp_path / "a.b2nd"
    a = b2array.asarray(X, url=url, chunks=(10, 10))
    a.snapshot("one")
    held = stock(str(url))
    held.schunk.vlmeta["unit"] = "K"  # from now on no fingerprint tells
    described = b2array.open(url)._handle.frame
    content = bytearray(url.read_bytes())
    content[described.tail_start + 4] ^= 0xFF
    url.write_bytes(content)
    with pytest.raises(FormatError):
        b2array.open(url)
    assert (at(url, "one")[...] == X).all()


# Histories.


class Histories(RuleBasedStateMachine):
    """Random histories of an array with snapshots, against copies in NumPy."""

    layout = "contiguous"
    place = "file"

    @initialize(noise=st.sampled_from([b"", NOISE]))
    def begin(self, noise):
        self.directory = tempfile.mkdtemp()
        name = Path(self.directory).name
        self.url = str(Path(self.directory, "x.b2nd")) if self.place == "file" else f"memory://{name}/x.b2nd"
        self.model = np.zeros((6, 5), "i4")
        self.attrs = {"noise": noise}
        self.kept = {}
        self.a = b2array.asarray(self.model, url=self.url, chunks=(2, 3), layout=self.layout, attrs=self.attrs)
        self.random = np.random.default_rng(0)

    def noted(self):
        return self.model.copy(), dict(self.attrs)

    @rule(start=st.integers(0, 8), count=st.integers(1, 4), value=st.integers(-9, 9))
    def write(self, start, count, value):
        values = self.random.integers(0, 2**30, (count, self.model.shape[1])) if value else 0
        part = slice(start, start + count)
        self.a[part] = values if not value else values[: self.model[part].shape[0]]
        self.model[part] = values if not value else values[: self.model[part].shape[0]]

    @rule()
    def write_all(self):
        self.model = self.random.integers(0, 2**30, self.model.shape, dtype="i4")
        self.a[...] = self.model

    @rule(rows=st.integers(1, 9), columns=st.integers(1, 7))
    def resize(self, rows, columns):
        self.a.resize((rows, columns))
        grown = np.zeros((rows, columns), "i4")
        common = tuple(slice(0, min(n, m)) for n, m in zip(self.model.shape, grown.shape, strict=True))
        grown[common] = self.model[common]
        self.model = grown

    @rule(value=st.integers(0, 9))
    def annotate(self, value):
        self.a.attrs["n"] = self.attrs["n"] = value

    @rule(name=st.sampled_from("abcd"))
    def snapshot(self, name):
        if name in self.kept:
            with pytest.raises(FileExistsError):
                self.a.snapshot(name)
        self.a.snapshot(name, replace=True)
        self.kept.pop(name, None)
        self.kept[name] = self.noted()

    @rule(name=st.sampled_from("abcd"))
    def snapshot_in_a_transaction(self, name):
        with self.a.transaction():
            self.a.snapshot(name, replace=True)
            self.a[0:1] = 77
            self.model[0:1] = 77
        self.kept.pop(name, None)
        self.kept[name] = self.noted()

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def restore(self, data):
        name = data.draw(st.sampled_from(sorted(self.kept)))
        self.a.restore(name)
        model, attrs = self.kept[name]
        self.model, self.attrs = model.copy(), dict(attrs)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def drop(self, data):
        name = data.draw(st.sampled_from(sorted(self.kept)))
        self.a.drop_snapshot(name)
        del self.kept[name]

    @rule()
    def clean(self):
        b2array.repack(self.url)
        b2array.vacuum(self.url, grace=0)
        self.a.refresh()

    @rule(kind=st.sampled_from(LAYOUTS), chunks=st.sampled_from([None, (3, 2)]))
    def copy(self, kind, chunks):
        copy = b2array.copy(self.a, chunks=chunks, layout="contiguous")
        assert (copy[...] == self.model).all()
        assert [each.name for each in copy.snapshots] == list(self.kept)
        if self.place == "file":
            url = f"{self.directory}/copy.b2nd"
            b2array.copy(self.a, url, layout=kind, chunks=chunks, overwrite=True)
            self.compare(url)

    @precondition(lambda self: self.place == "file")
    @rule(value=st.integers(0, 5))
    def change_by_stock(self, value):
        held = stock(self.url)
        held.schunk.vlmeta["n"] = value
        self.attrs["n"] = value
        self.a.refresh()

    @precondition(lambda self: len(self.kept) > 1)
    @rule(data=st.data())
    def diff(self, data):
        names = data.draw(st.permutations(sorted(self.kept)))[:2]
        one, two = (self.kept[name][0] for name in names)
        whole = tuple(map(max, one.shape, two.shape))
        differ = np.ones(whole, bool)
        common = tuple(slice(0, min(n, m)) for n, m in zip(one.shape, two.shape, strict=True))
        differ[common] = one[common] != two[common]
        for box in self.a.diff(*names):
            differ[box] = False
        assert not differ[common].any()

    def compare(self, url):
        a = b2array.open(url)
        assert a.shape == self.model.shape
        assert (a[...] == self.model).all()
        assert dict(a.attrs) == self.attrs
        assert [each.name for each in a.snapshots] == list(self.kept)
        for name, (model, attrs) in self.kept.items():
            kept = at(url, name)
            assert kept.shape == model.shape
            assert (kept[...] == model).all()
            assert dict(kept.attrs) == attrs
        report = b2array.verify(url, deep=True)
        assert report.ok, report.problems

    @invariant()
    def is_as_the_model(self):
        with config.using(cache_bytes=0):
            self.compare(self.url)

    def teardown(self):
        if self.place == "file":
            with config.using(cache_bytes=0):
                assert (blosc2.open(self.url)[...] == self.model).all()
        else:
            fsspec.filesystem("memory").store.clear()
        shutil.rmtree(self.directory)


class SparseHistories(Histories):
    """The same in a directory."""

    layout = "sparse"


class MemoryHistories(Histories):
    """The same in memory."""

    place = "memory"


for machine in (Histories, SparseHistories, MemoryHistories):
    machine.TestCase.settings = settings(
        max_examples=examples(12),
        stateful_step_count=15,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )

TestContiguous = Histories.TestCase
TestSparse = SparseHistories.TestCase
TestMemory = MemoryHistories.TestCase


# --- frames whose chunks got their shape after a snapshot -------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("nrows", [3, 300_000])
def test_an_array_of_stock_that_was_empty_then_goes_back_and_forth(tmp_path, layout, nrows):
    """Stock gives an empty array no chunks: the first items choose them."""
    path = tmp_path / "a.b2nd"
    blosc2.zeros((0, 5), urlpath=str(path), contiguous=layout == "contiguous")
    b2array.open(path, "r+").snapshot("empty")
    values = np.arange(nrows * 5.0).reshape(nrows, 5)
    b2array.open(path, "r+").append(values)
    if layout == "sparse":  # one file without chunks has no room for the chunks of other snapshots
        b2array.open(path, "r+").snapshot("full")
    b2array.open(path, "r+").restore("empty")
    array = b2array.open(path, "r+")
    assert array.shape == (0, 5)
    if layout == "sparse":
        array.restore("full")
    else:
        array.append(values)
    array = b2array.open(path, "r+")
    np.testing.assert_array_equal(array[...], values)
    array.append(values)
    np.testing.assert_array_equal(b2array.open(path)[...], np.concatenate([values, values]))
    assert b2array.verify(path).ok
    np.testing.assert_array_equal(blosc2.open(str(path))[:nrows], values)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_super_chunk_that_got_its_chunk_size_later_goes_back(tmp_path, layout):
    """Stock writes no chunk size before the first chunk."""
    path, data = tmp_path / "s.b2frame", np.arange(100_000)
    blosc2.SChunk(urlpath=str(path), contiguous=layout == "contiguous", cparams={"typesize": 8, "blocksize": 2**16})
    chunks = b2array.open_schunk(path, "r+")
    assert (chunks.nchunks, chunks.chunksize) == (0, 0)
    chunks.snapshot("empty")
    chunks.append_data(data)
    chunks = b2array.open_schunk(path, "r+")
    assert (chunks.nchunks, chunks.chunksize) == (1, data.nbytes)
    chunks.restore("empty")
    chunks = b2array.open_schunk(path, "r+")
    assert (chunks.nchunks, chunks.chunksize) == (0, 0)
    chunks.append_data(data[:10])
    assert b2array.open_schunk(path)[:] == data[:10].tobytes()
