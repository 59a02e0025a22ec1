"""Changes are values: the laws of `apply_change`, `rebase_change` and `join_changes`."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import b2array
from b2array.codec import encode
from b2array.codec.chunk_header import Special
from b2array.commit.changes import LOWEST_CODE, SEGMENT, ChangeSet, apply_change, join_changes, rebase_change
from b2array.commit.draft import Draft, mark_lost
from b2array.commit.edits import compact
from b2array.commit.fork_point import make_portable
from b2array.commit.forks import Fork, fork, merge_changes
from b2array.commit.frame_commit import commit
from b2array.commit.handle import Handle
from b2array.errors import ChunkLostError, ConflictError
from b2array.format.state import State
from b2array.frame.revision import Revision

NCHUNKS, WIDTH = 5, 8
LAYOUTS = ["contiguous", "sparse"]


def base_of(layout: str) -> Revision:
    a = b2array.asarray(np.arange(1.0, 1 + NCHUNKS * WIDTH), chunks=(WIDTH,), blocks=(4,), layout=layout)
    a.attrs.update(x=0, y=0)
    return a._handle.revision


def packed(value: float) -> bytes:
    return encode.encode((value + np.arange(float(WIDTH))).tobytes(), typesize=8, blocksize=32)


def described(state: State) -> tuple[Any, ...]:
    """Return everything that a state says."""
    frame = state.frame
    return (
        frame.offsets.tolist(),
        state.sizes.tolist(),
        state.records.tolist(),
        state.attrs(),
        state.annotations,
        frame.nbytes,
        frame.chunksize,
        frame.blocksize,
        frame.metalayers,
    )


# One step of a history: what a task does to a draft.


def put(seed: int) -> Callable[[Draft], None]:
    def step(draft: Draft) -> None:
        if draft.frame.nchunks:
            draft.put(seed % draft.frame.nchunks, packed(1 + seed))

    return step


def special(seed: int) -> Callable[[Draft], None]:
    def step(draft: Draft) -> None:
        if draft.frame.nchunks:
            kind = Special.NAN if seed % 2 else Special.ZEROS
            draft.put(seed % draft.frame.nchunks, encode.special_chunk(kind, 8 * WIDTH, typesize=8, blocksize=32))

    return step


def lose(seed: int) -> Callable[[Draft], None]:
    def step(draft: Draft) -> None:
        if draft.frame.nchunks:
            mark_lost(draft, seed % draft.frame.nchunks)

    return step


def read(seed: int) -> Callable[[Draft], None]:
    def step(draft: Draft) -> None:
        if draft.frame.nchunks:
            with suppress(ChunkLostError):
                draft.locate(seed % draft.frame.nchunks)

    return step


def attribute(seed: int) -> Callable[[Draft], None]:
    def step(draft: Draft) -> None:
        draft.set_attr("xyz"[seed % 3], None if seed % 4 == 0 else bytes([seed % 100]))

    return step


def dims(seed: int) -> Callable[[Draft], None]:
    return lambda draft: draft.annotate(dims=(f"axis {seed}",))


def reindex(seed: int) -> Callable[[Draft], None]:
    def step(draft: Draft) -> None:
        draws = np.random.default_rng(seed)
        count = draft.frame.nchunks
        order = draws.permutation(np.append(np.arange(count), [-1] * int(draws.integers(0, 3))))
        order = order[: len(order) - int(draws.integers(0, 2))]
        draft.reindex(order, nbytes=len(order) * 8 * WIDTH)

    return step


def failed(steps: list[Callable[[Draft], None]]) -> Callable[[Draft], None]:
    def attempted(draft: Draft) -> None:
        with pytest.raises(ZeroDivisionError), draft.attempt():
            for step in steps:
                step(draft)
            raise ZeroDivisionError

    return attempted


STEPS = st.builds(
    lambda kind, seed: kind(seed),
    st.sampled_from([put, special, lose, read, attribute, dims, reindex]),
    st.integers(0, 2**16),
)
HISTORIES = st.lists(STEPS | st.lists(STEPS, max_size=4).map(failed), max_size=12)


@given(st.sampled_from(LAYOUTS), HISTORIES)
def test_a_draft_and_its_change_lead_from_the_base_to_one_state(
    layout: str, history: list[Callable[[Draft], None]]
) -> None:
    base = base_of(layout)
    draft = Draft(base.store, base)
    before = described(base.state)
    for step in history:
        step(draft)
    change = draft.freeze()
    assert described(apply_change(change, base.state)) == described(draft.state)
    assert described(base.state) == before
    assert rebase_change(change, base, base) is change
    received = pickle.loads(pickle.dumps(make_portable(change)))
    assert described(apply_change(received, base.state)) == described(draft.state)
    if change.is_empty:
        assert described(draft.state) == before
    draft.abort()


def test_a_change_that_only_compacts_is_not_empty() -> None:
    base = base_of("contiguous")
    draft = Draft(base.store, base)
    assert draft.freeze().is_empty
    compact(draft)
    assert not draft.freeze().is_empty


def test_lost_chunks_keep_their_mark_when_the_order_changes() -> None:
    base = base_of("contiguous")
    draft = Draft(base.store, base)
    mark_lost(draft, 1)
    draft.reindex([3, 1, -1, 0], nbytes=4 * 8 * WIDTH)
    assert apply_change(draft.freeze(), base.state).annotations.lost == (1,)
    draft.reindex([1, 0, 2], nbytes=3 * 8 * WIDTH)
    assert apply_change(draft.freeze(), base.state).annotations.lost == (0,)
    draft.abort()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [1, 50])
def test_a_metadata_change_is_rebased_onto_another_number_of_chunks(layout: str, count: int) -> None:
    base = base_of(layout)
    ours, theirs = Draft(base.store, base), Draft(base.store, base)
    ours.set_attr("unit", b"m")
    theirs.reindex([0] + [-1] * (count - 1), nbytes=count * 8 * WIDTH)
    commit(theirs)
    ours.rebase(base.owner.load(base))
    assert not ours.freeze().reads.size
    for n in range(count):  # as a file that is written again reads them
        ours.reader().locate(n)
    after = commit(ours)
    assert (after.frame.nchunks, after.state.attr("unit")) == (count, b"m")


def test_a_frame_with_the_other_layout_is_a_conflict() -> None:
    base = base_of("sparse")
    draft = Draft(base.store, base)
    draft.set_attr("z", b"\x01")
    with pytest.raises(ConflictError, match="other layout"):
        rebase_change(draft.freeze(), base, base_of("contiguous"))
    draft.abort()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_compacting_change_cannot_be_rebased(layout: str) -> None:
    base = base_of(layout)
    draft, other = Draft(base.store, base), Draft(base.store, base)
    compact(draft)
    other.set_attr("z", b"\x01")
    commit(other)
    with pytest.raises(ConflictError, match="repeat the change"):
        rebase_change(draft.freeze(), base, base.owner.load(base))


def test_chunks_that_only_moved_in_a_rewritten_file_are_not_a_conflict() -> None:
    first = base_of("contiguous")
    draft = Draft(first.store, first)
    draft.put(0, packed(50))  # leaves dead space
    base = commit(draft)
    draft, other = Draft(base.store, base), Draft(base.store, base)
    draft.put(0, packed(51))
    draft.locate(2)
    compact(other)
    other.put(3, packed(53))
    commit(other)
    current = base.owner.load(base)
    assert current.frame.offsets[0] != base.frame.offsets[0]
    assert rebase_change(draft.freeze(), base, current).base == current.generation
    draft.locate(3)
    with pytest.raises(ConflictError, match=r"chunks \[3\]"):
        rebase_change(draft.freeze(), base, current)


SETS = st.sets(st.integers(0, NCHUNKS - 1))
NAMES = st.sets(st.sampled_from("xyz"))


@given(st.sampled_from(LAYOUTS), SETS, SETS, SETS, NAMES, NAMES, st.sampled_from(["", "ours", "theirs"]))
def test_a_change_is_rebased_unless_another_commit_overlaps_it(
    layout: str,
    puts: set[int],
    reads: set[int],
    theirs: set[int],
    names: set[str],
    their_names: set[str],
    resized: str,
) -> None:
    base = base_of(layout)
    draft, other = Draft(base.store, base), Draft(base.store, base)
    for n in puts:
        draft.put(n, packed(100 + n))
    for n in reads:
        draft.locate(n)
    for name in names:
        draft.set_attr(name, b"\xa4ours")
    for n in theirs:
        other.put(n, packed(200 + n))
    for name in their_names:
        other.set_attr(name, b"\xa6theirs")
    if resized:
        longer = [*range(NCHUNKS), -1]
        (draft if resized == "ours" else other).reindex(longer, nbytes=(NCHUNKS + 1) * 8 * WIDTH)
    change = draft.freeze()
    commit(other)
    current = base.owner.load(base)
    is_changed = current.generation != base.generation
    if resized == "theirs":
        meets = bool(puts or reads)
    else:
        meets = bool(theirs & (puts | reads)) or (resized == "ours" and is_changed)
    if meets or names & their_names:
        with pytest.raises(ConflictError):
            rebase_change(change, base, current)
        draft.abort()
        return
    on_top = rebase_change(change, base, current)
    assert on_top.base == current.generation
    assert on_top.next >= max(change.next, current.state.annotations.next or 0)
    assert rebase_change(on_top, current, current) is on_top
    both = apply_change(on_top, current.state)
    if resized != "ours":
        untouched = sorted({*range(NCHUNKS)} - puts)
        assert (both.frame.offsets[untouched] == current.frame.offsets[untouched]).all()
        assert (both.frame.offsets[sorted(puts)] == change.codes).all()
    for name in "xyz":
        wanted = change.attrs[name] if name in names else current.state.attr(name)
        assert both.attr(name) == wanted
    draft.abort()


@given(st.sampled_from(LAYOUTS), SETS, SETS)
def test_two_rebased_changes_are_both_read_after_the_commit(layout: str, ours: set[int], theirs: set[int]) -> None:
    theirs -= ours
    base = base_of(layout)
    draft, other = Draft(base.store, base), Draft(base.store, base)
    for n in ours:
        draft.put(n, packed(100 + n))
    for n in theirs:
        other.put(n, packed(200 + n))
    commit(other)
    commit(draft)
    found = b2array.NDArray(Handle(base.owner.load(base), "r"))[...].reshape(NCHUNKS, WIDTH)[:, 0]
    expected = [100 + n if n in ours else 200 + n if n in theirs else 1 + n * WIDTH for n in range(NCHUNKS)]
    assert found.tolist() == expected


# Changes of forks.

WRITES = st.dictionaries(st.integers(0, NCHUNKS - 1), st.integers(0, 3), max_size=NCHUNKS)
"""The number of a chunk, and what it gets: 0 for zeros, 1 for NaN."""


def written(parent: Handle, writes: dict[int, int]) -> Fork:
    made = fork(parent)
    draft = made.draft
    assert draft is not None
    for n, value in writes.items():
        kinds = {0: Special.ZEROS, 1: Special.NAN}
        special = kinds.get(value)
        chunk = packed(value) if special is None else encode.special_chunk(special, 8 * WIDTH, typesize=8, blocksize=32)
        draft.put(n, chunk)
    return made


def resolved(change: ChangeSet) -> dict[int, bytes | int]:
    """Return the bytes of each chunk, or its special code."""
    contents: dict[int, bytes | int] = {}
    for n, code in zip(change.numbers.tolist(), change.codes.tolist(), strict=True):
        if code < LOWEST_CODE:
            contents[n] = code
            continue
        start, stop, _ = change.extents[-1 - code].tolist()
        segment = change.segments[start // SEGMENT]
        contents[n] = bytes(segment.read(start % SEGMENT, stop - start // SEGMENT * SEGMENT))
    return contents


@pytest.mark.filterwarnings("ignore:.*were never merged:UserWarning")
@given(st.sampled_from(LAYOUTS), st.lists(WRITES, min_size=3, max_size=5), st.booleans())
def test_merging_is_associative_commutative_and_idempotent(
    layout: str, writes: list[dict[int, int]], is_sent: bool
) -> None:
    handle = b2array.NDArray(Handle(base_of(layout), "r+"))._handle
    handle.enter(draft := handle.begin())
    draft.put(0, packed(50))  # before the forks
    changes = [written(handle, each).freeze() for each in writes]
    if is_sent:
        changes = [pickle.loads(pickle.dumps(make_portable(change))) for change in changes]
    values: dict[int, set[int]] = {}
    for each in writes:
        for n, value in each.items():
            values.setdefault(n, set()).add(value)
    conflicts = sorted(n for n, found in values.items() if len(found) > 1)
    if conflicts:
        with pytest.raises(ConflictError, match="chunks"):
            join_changes(changes)
        draft.abort()
        return
    whole = resolved(join_changes(changes))
    assert whole.keys() == values.keys()
    a, b, *rest = changes
    assert resolved(join_changes([join_changes([a, b]), *rest])) == whole
    assert resolved(join_changes([a, join_changes([b, *rest])])) == whole
    assert resolved(join_changes(changes[::-1])) == whole
    assert resolved(join_changes([*changes, *changes])) == whole
    assert resolved(join_changes([a, a])) == resolved(a)
    assert join_changes([a]) is a
    merge_changes(draft, changes)
    commit(draft)
    handle.leave(None)
    found = b2array.NDArray(Handle(handle.revision.owner.load(handle.revision), "r"))[...].reshape(NCHUNKS, WIDTH)[:, 0]
    expected = [50.0, *(1.0 + n * WIDTH for n in range(1, NCHUNKS))]
    for n, (value,) in values.items():
        expected[n] = {0: 0.0, 1: np.nan}.get(value, float(value))
    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_merged_change_contains_both_changes(layout: str) -> None:
    handle = Handle(base_of(layout), "r+")
    handle.enter(draft := handle.begin())
    one, two = written(handle, {3: 2}), written(handle, {1: 3})
    for each, name, read in ((one, "x", 0), (two, "z", 4)):
        assert each.draft is not None
        each.draft.set_attr(name, b"\x05")
        each.draft.locate(read)
    assert two.draft is not None
    two.draft.annotate(dims=("t",))
    a, b = one.freeze(), two.freeze()
    for both in (join_changes([a, b]), join_changes([b, a])):
        assert both.reads.tolist() == [0, 4]
        assert dict(both.attrs) == {"x": b"\x05", "z": b"\x05"}
        assert both.after.dims == ("t",)
        assert both.next == max(a.next, b.next)
        assert both.filters is not None
        assert both.filters[0] == 1
        assert both.of_fork is not None
        assert both.of_fork.forks == {*a.of_fork.forks, *b.of_fork.forks}
        assert dict(both.of_fork.attrs) == {"x": base_of(layout).state.attr("x"), "z": None}
    later = dataclasses.replace(b, next=a.next + 7)
    assert join_changes([a, later]).next == join_changes([later, a]).next == a.next + 7
    draft.abort()


@pytest.mark.parametrize("kept", ["attributes", "dims"])
def test_changes_with_different_values_of_one_name_cannot_be_merged(kept: str) -> None:
    handle = Handle(base_of("sparse"), "r+")
    handle.enter(draft := handle.begin())
    forks = [written(handle, {}) for _ in range(2)]
    for n, each in enumerate(forks):
        assert each.draft is not None
        if kept == "dims":
            each.draft.annotate(dims=(f"axis {n}",))
        else:
            each.draft.set_attr("x", bytes([n]))
    changes = [each.freeze() for each in forks]
    with pytest.raises(ConflictError, match="dims" if kept == "dims" else "'x'"):
        join_changes(changes)
    assert join_changes([changes[0], changes[0]]).attrs == changes[0].attrs
    draft.abort()


@pytest.mark.filterwarnings("ignore:.*were never merged:UserWarning")
def test_only_changes_of_forks_of_one_transaction_can_be_merged() -> None:
    changes = []
    for _ in range(2):
        handle = Handle(base_of("contiguous"), "r+")
        handle.enter(handle.begin())
        changes.append(written(handle, {0: 2}).freeze())
    with pytest.raises(ConflictError, match="different ones"):
        join_changes(changes)
    one = changes[0]
    for other in (
        dataclasses.replace(one, base="another"),
        dataclasses.replace(one, of_fork=dataclasses.replace(one.of_fork, epoch=1)),
    ):
        with pytest.raises(ConflictError, match="different ones"):
            join_changes([one, other])
    base = base_of("contiguous")
    plain = Draft(base.store, base).freeze()
    with pytest.raises(ConflictError, match="different ones"):
        join_changes([plain, plain])
