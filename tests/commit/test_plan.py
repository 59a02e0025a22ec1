"""Every decision of a commit, from facts and frames in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import b2array
from b2array.catalog.owners import load
from b2array.codec import encode
from b2array.codec.chunk_header import Special
from b2array.commit.changes import ChangeSet
from b2array.commit.draft import Draft
from b2array.commit.edits import compact, set_special
from b2array.commit.handle import Handle
from b2array.commit.plan import CommitStep, Facts, Plan, _dead_nbytes, plan
from b2array.format.frame_header import FrameType
from b2array.format.ledger import ledger_of
from b2array.frame.revision import Revision
from b2array.store.memory import MemoryStore

NCHUNKS, WIDTH = 4, 8
FILE = Facts("a", appendable=True, salt=b"0" * 16)
OBJECT = replace(FILE, appendable=False, locks=False)


def values(start: float) -> np.ndarray:
    return start + np.arange(float(WIDTH))


def packed(start: float) -> bytes:
    return encode.encode(values(start).tobytes(), typesize=8, blocksize=32)


def frame(layout: str = "contiguous", nchunks: int = NCHUNKS) -> Revision:
    a = b2array.asarray(np.arange(float(nchunks * WIDTH)), chunks=(WIDTH,), blocks=(4,), layout=layout)
    return a._handle.revision


def changed(base: Revision, numbers: range, *, attrs: tuple[str, ...] = ()) -> Draft:
    draft = Draft(base.store, base)
    for n in numbers:
        draft.put(n, packed(100 * (n + 1)))
    for name in attrs:
        draft.set_attr(name, b"\x01")
    return draft


# The table of decisions: the change, the frame that it changes, the facts, and the step.


def of_part(base: Revision) -> ChangeSet:
    return changed(base, range(1, 2)).freeze()


def of_attribute(base: Revision) -> ChangeSet:
    return changed(base, range(0), attrs=("x",)).freeze()


def of_all(base: Revision) -> ChangeSet:
    return changed(base, range(NCHUNKS)).freeze()


def of_nothing(base: Revision) -> ChangeSet:
    return changed(base, range(0)).freeze()


def of_more_chunks(base: Revision) -> ChangeSet:
    draft = changed(base, range(0))
    draft.reindex([*range(NCHUNKS), -1], nbytes=8 * WIDTH * (NCHUNKS + 1))
    return draft.freeze()


def of_no_chunks(base: Revision) -> ChangeSet:
    draft = changed(base, range(0))
    draft.reindex([], nbytes=0)
    return draft.freeze()


def of_another_chunk_size(base: Revision) -> ChangeSet:
    draft = changed(base, range(0))
    draft.reindex([0], nbytes=8 * WIDTH, metalayers=(*base.frame.metalayers, ("more", b"\xc4\x00")))
    return draft.freeze()


def compacting(base: Revision) -> ChangeSet:
    draft = changed(base, range(1, 2))
    compact(draft)
    return draft.freeze()


ROOM = "room for the header of the base"
DECISIONS = [
    ("a part of a file", of_part, "contiguous", FILE, CommitStep.APPEND),
    ("an attribute of a file", of_attribute, "contiguous", FILE, CommitStep.APPEND),
    ("nothing, in a file", of_nothing, "contiguous", FILE, CommitStep.APPEND),
    ("all of a file, in memory", of_all, "contiguous", FILE, CommitStep.APPEND),
    ("all of a file, in a file beside", of_all, "contiguous", ROOM, CommitStep.REPLACE_FILE),
    ("a part of a file, in a file beside", of_part, "contiguous", ROOM, CommitStep.APPEND),
    ("more chunks", of_more_chunks, "contiguous", FILE, CommitStep.APPEND),
    ("more chunks, in a file beside", of_more_chunks, "contiguous", ROOM, CommitStep.APPEND),
    ("no chunks any more", of_no_chunks, "contiguous", FILE, CommitStep.COMPACT),
    ("a header of another length", of_another_chunk_size, "contiguous", FILE, CommitStep.COMPACT),
    ("at the wish of the user", compacting, "contiguous", FILE, CommitStep.COMPACT),
    ("a part of an object", of_part, "contiguous", OBJECT, CommitStep.COMPACT),
    ("all of an object", of_all, "contiguous", OBJECT, CommitStep.COMPACT),
    ("an attribute of an object", of_attribute, "contiguous", OBJECT, CommitStep.COMPACT),
    ("a part of a directory", of_part, "sparse", FILE, CommitStep.REPLACE_INDEX),
    ("all of a directory", of_all, "sparse", FILE, CommitStep.REPLACE_INDEX),
    ("no chunks any more in a directory", of_no_chunks, "sparse", FILE, CommitStep.REPLACE_INDEX),
    ("a part of a prefix", of_part, "sparse", OBJECT, CommitStep.REPLACE_INDEX),
]


@pytest.mark.parametrize(
    ("make", "layout", "facts", "step"), [row[1:] for row in DECISIONS], ids=[row[0] for row in DECISIONS]
)
def test_a_change_of_a_frame_is_committed_by_this_step(
    make: Callable[[Revision], ChangeSet], layout: str, facts: Facts | str, step: CommitStep
) -> None:
    base = frame(layout)
    if isinstance(facts, str):
        facts = replace(FILE, header_room=len(base.header))
    made = plan(make(base), base, facts)
    assert made.step == step
    assert made.finishes_spool == (step == CommitStep.REPLACE_FILE)
    assert made.otherwise is None
    if step == CommitStep.COMPACT:
        assert (made.header, made.tail, made.state) == (b"", b"", None)
        with pytest.raises(ValueError, match="no next state yet"):
            made.require_state()
    else:
        assert made.header
        assert made.tail
        assert made.require_state().frame.frame_type == (
            FrameType.SPARSE if layout == "sparse" else FrameType.CONTIGUOUS
        )


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.parametrize(("aside", "step"), [(False, CommitStep.NEW_FRAME), (True, CommitStep.EXCHANGE)])
def test_a_new_frame_is_made_in_its_place_or_aside(layout: str, *, aside: bool, step: CommitStep) -> None:
    base = frame(layout)
    change = Draft(MemoryStore(), None, base.state.with_tables(None, None).with_frame(offsets=zeros())).freeze()
    for facts in (FILE, OBJECT):
        assert plan(change, None, replace(facts, aside=aside)).step == step
    with pytest.raises(ValueError, match="needs a state"):
        plan(replace(change, new=None), None, FILE)


def zeros() -> np.ndarray:
    a = b2array.zeros(NCHUNKS * WIDTH, "f8", chunks=(WIDTH,))
    return a._handle.frame.offsets


def test_a_file_that_would_be_mostly_dead_is_compacted_or_extended_if_that_fails() -> None:
    draws = np.random.default_rng(0)
    a = b2array.asarray(draws.random(40_000), chunks=(10_000,))
    base = a._handle.revision
    draft = Draft(base.store, base)
    for n in range(3):
        draft.put(n, encode.special_chunk(Special.ZEROS, 80_000, typesize=8))
    made = plan(draft.freeze(), base, FILE)
    assert made.step == CommitStep.COMPACT
    assert made.otherwise is not None
    assert made.otherwise.step == CommitStep.APPEND
    assert plan(draft.freeze(), base, OBJECT).otherwise is None


@pytest.mark.parametrize("dtype", ["T", "U40", "i8"])
def test_a_plan_counts_as_dead_what_verify_finds_dead(tmp_path: Path, dtype: str) -> None:
    numbers = np.arange(3000) * 10**9
    a = b2array.asarray(numbers.astype(dtype), url=tmp_path / "a.b2nd", chunks=100, blocks=10)

    def counted() -> int | None:
        state = a._handle.revision.state
        return _dead_nbytes(state, ledger_of(state))

    def found() -> int:
        return b2array.verify(tmp_path / "a.b2nd", deep=True).dead_nbytes

    assert counted() == found() == 0
    a.snapshot("one")
    a[::2] = a[1::2]
    assert counted() == found()
    # The bytes that kept states need are counted anew.
    a.drop_snapshot("one")
    assert counted() == found() > 1000
    a.snapshot("two")
    a[5] = a[6]
    assert counted() == found()


def test_a_plan_depends_on_nothing_but_its_arguments() -> None:
    base = frame()
    change = of_part(base)
    one, two = plan(change, base, FILE), plan(change, base, FILE)
    assert (one.header, one.tail, one.pieces.tolist()) == (two.header, two.tail, two.pieces.tolist())
    other = plan(change, base, replace(FILE, salt=b"1" * 16))
    assert one.require_state().frame.fingerprint != other.require_state().frame.fingerprint
    assert plan(change, base, replace(FILE, locks=False)).require_state().annotations != (
        one.require_state().annotations
    )


# No plan overwrites live bytes.


def shown(data: bytes) -> list[float]:
    """Return the first item of each chunk of a frame in memory."""
    a = b2array.from_bytes(data)
    return [float(value) for value in a[...].reshape(-1, WIDTH)[:, 0]]


def pieces_of(made: Plan, draft: Draft) -> bytes:
    return b"".join(bytes(piece) for piece in draft.staging.pieces(made.pieces))


HISTORIES = st.lists(
    st.dictionaries(st.integers(0, NCHUNKS - 1), st.sampled_from([-1.0, 0.0, 7.0, 11.0, 1e300]), max_size=NCHUNKS),
    min_size=1,
    max_size=4,
)


@given(HISTORIES, st.data())
def test_a_plan_never_overwrites_live_bytes(history: list[dict[int, float]], data: st.DataObject) -> None:
    base = frame()
    content = b2array.NDArray(Handle(base, "r")).to_bytes()
    for writes in history:
        store = MemoryStore({"": content})
        current = load(store)
        before = shown(content)
        draft = Draft(store, current)
        for n, value in writes.items():
            if value:
                draft.put(n, packed(value))
            else:
                set_special(draft, np.array([n]), Special.ZEROS)
        made = plan(draft.freeze(), current, FILE)
        if made.step == CommitStep.COMPACT:
            break
        assert made.step == CommitStep.APPEND
        live = content[: current.frame.frame_len]
        appended = pieces_of(made, draft) + made.tail
        # What is there while the commit appends, at any moment.
        for stop in (0, data.draw(st.integers(0, len(appended))), len(appended)):
            assert shown(live + appended[:stop]) == before
        assert len(made.header) == len(current.header)
        content = made.header + live[len(made.header) :] + appended
        after = [float(writes.get(n, before[n])) for n in range(NCHUNKS)]
        assert shown(content) == after
        # A reader with the old header finds each of its chunks.
        assert shown(current.header + content[len(made.header) :]) == before
        state = load(MemoryStore({"": content})).state
        assert state.frame.offsets.tolist() == made.require_state().frame.offsets.tolist()
        assert state.annotations == made.require_state().annotations
        draft.abort()


@given(st.sets(st.integers(0, NCHUNKS - 1)))
def test_a_plan_for_a_sparse_frame_uses_no_file_of_the_base_again(numbers: set[int]) -> None:
    base = frame("sparse")
    draft = Draft(base.store, base)
    for n in numbers:
        draft.put(n, packed(100 * (n + 1)))
    offsets = plan(draft.freeze(), base, FILE).require_state().frame.offsets
    untouched = sorted({*range(NCHUNKS)} - numbers)
    assert (offsets[untouched] == base.frame.offsets[untouched]).all()
    assert not np.isin(offsets[sorted(numbers)], base.frame.offsets).any()
    draft.abort()
