"""`plan`: decides how a change becomes the next state of a frame. It makes every decision of a commit, without I/O.

A frame of two kinds can get its next state in several ways:

=============  ======================================================================================
new frame      one file or object with everything (`NEW_FRAME`); if it replaces a frame of the other
               layout, in another place first, which then takes the place of the old one (`EXCHANGE`)
sparse         the chunks have files already; one write replaces the index (`REPLACE_INDEX`)
contiguous     the new chunks are appended, with a new index behind them, and then one small write to
               the header refers to that (`APPEND`)
contiguous     all chunks are new, and wait in a file beside: that file replaces the old one
               (`REPLACE_FILE`)
contiguous     the file is written again with all its chunks (`COMPACT`): where files cannot be
               extended, where the header cannot be changed in one small write, where most of the file
               would be dead space, and where the user asks for it
=============  ======================================================================================

The chunks of a state that is kept under a name are not dead space, and a file that contains them is replaced only by a
file that contains them as well. The packed index of a kept state is between the chunks and the index, or in a separate
object.

Sources: "Blosc2 Contiguous Frame Format" and "Blosc2 Sparse Frame Format" of the Blosc2 documentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from hashlib import blake2b
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from b2array.codec.chunk_header import FilterId
from b2array.codec.cparams import AUTO
from b2array.commit.changes import ChangeSet, Keep, apply_change, is_spooled
from b2array.errors import LimitError
from b2array.format import fingerprint, frame, index
from b2array.format.annotations import LAYER, pack_fitting_sizes, pack_records
from b2array.format.checksums import record_nbytes
from b2array.format.foreign_indexes import with_stale_indexes
from b2array.format.frame import Frame
from b2array.format.frame_header import FrameType
from b2array.format.ledger import DIGEST_NBYTES, Ledger, has_room, ledger_of, object_name, pack_state
from b2array.format.state import State, layers_with, parse, with_text_nbytes
from b2array.frame.revision import Revision

__all__ = ["CommitStep", "Facts", "Plan", "files_without_size", "plan"]

Int64Array = npt.NDArray[np.int64]

_ATOMIC_HEADER = 512
"""A header is rewritten in place only if it changes only within its first bytes, as many as a disk's sector has."""
_DEAD_LIMIT = 2**16
"""With less dead space than this, a commit never writes a whole contiguous frame again."""


class CommitStep(Enum):
    """The way in which a frame gets its next state."""

    NEW_FRAME = auto()
    EXCHANGE = auto()
    REPLACE_INDEX = auto()
    APPEND = auto()
    REPLACE_FILE = auto()
    COMPACT = auto()


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that `plan` needs from the store and the staging area.

    Parameters
    ----------
    url : str
        The frame, for messages.
    appendable : bool
        Whether files can be extended.
    locks : bool
        Whether locks exclude other writers. Otherwise, the frame lists each commit, so that the writer can recognize
        it.
    aside : bool
        Whether a new frame replaces one of the other layout.
    header_room : int, optional
        The number of bytes for a header in the spool's file; None if there is no such file.
    file_sizes : mapping of int to int
        The sizes in bytes, by number, of chunk files whose sizes neither the index nor the change has. Missing files
        are not in it.
    kept : tuple of State, optional
        If the change drops kept states, the kept states that remain: they determine how much becomes dead space. None
        if one of them is lost, so that this is unknown.
    salt : bytes
        Random bytes that distinguish this commit from an equal commit.
    keep_file : bool
        Whether to append to the present file if possible, because snapshots of a group need bytes in it.
    """

    url: str
    appendable: bool
    locks: bool = True
    aside: bool = False
    header_room: int | None = None
    file_sizes: Mapping[int, int] = field(default_factory=dict)
    kept: tuple[State, ...] | None = ()
    salt: bytes = b""
    keep_file: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The bytes that a commit writes, and the step that writes them.

    Parameters
    ----------
    step : CommitStep
        How the frame gets its next state.
    header, tail : bytes
        Header, index and trailer of that state. They are empty for `COMPACT`: another plan follows after all chunks
        were copied.
    state : State, optional
        The next state.
    pieces : array of int64, shape (n, 2)
        The ranges of the spooled chunks to write between header and tail, in this order. For `APPEND`, these and the
        tail follow the end of the frame.
    finishes_spool : bool
        Whether the spool's file, which already has the pieces, becomes the frame.
    objects : mapping of str to bytes
        Objects to which the new state refers, and which must be made first.
    otherwise : Plan, optional
        The plan to use if a chunk cannot be read, so that the frame cannot be compacted.
    """

    step: CommitStep
    header: bytes = b""
    tail: bytes = b""
    state: State | None = None
    pieces: Int64Array = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    finishes_spool: bool = False
    objects: Mapping[str, bytes] = field(default_factory=dict)
    otherwise: Self | None = None

    @property
    def destroys(self) -> bool:
        """Whether the step removes bytes of the present file, which snapshots of a group may need."""
        return self.step in (CommitStep.COMPACT, CommitStep.REPLACE_FILE)

    def require_state(self) -> State:
        """Return the next state; ValueError for a `COMPACT` plan, which does not know it yet."""
        if self.state is None:
            raise ValueError("a frame that is compacted first has no next state yet")
        return self.state


def plan(change: ChangeSet, current: Revision | None, facts: Facts) -> Plan:
    """Decide how to commit a change on top of the current state, and pack the next one; do no I/O.

    `current` is None for a new frame. An empty `COMPACT` plan means: copy all chunks to a draft of a new frame first,
    and then plan the commit of that draft; `otherwise` is the plan if a chunk cannot be copied. LimitError: the file
    has no room for the chunks of kept states.
    """
    if current is None:
        step = CommitStep.EXCHANGE if facts.aside else CommitStep.NEW_FRAME
        return _pack_next(change, None, facts, step)
    if current.sparse:
        return _pack_next(change, current, facts, CommitStep.REPLACE_INDEX)
    if not facts.appendable:
        return Plan(CommitStep.COMPACT)
    # If all chunks are new, their file can replace the old one, and they are not written again after the old chunks.
    # That file has room for a header as long as the base had; another writer may have committed a longer one since.
    has_all = change.numbers.size == current.frame.nchunks
    refers_to_old = change.is_structural or (change.codes >= 0).any()
    keeps_others = facts.keep_file or bool(current.state.annotations.kept)
    if has_all and not refers_to_old and not keeps_others and facts.header_room == len(current.header):
        intended = _pack_next(change, current, facts, CommitStep.REPLACE_FILE)
    else:
        intended = _pack_next(change, current, facts, CommitStep.APPEND)
        if change.compacts or not _can_patch_header(current, intended):
            return Plan(CommitStep.COMPACT)
    is_rewritten = not facts.keep_file and _is_mostly_dead(intended.require_state())
    return Plan(CommitStep.COMPACT, otherwise=intended) if is_rewritten else intended


def _can_patch_header(current: Revision, intended: Plan) -> bool:
    """Whether the headers differ only in the first bytes of the file, so that one small write can replace the old one.

    A frame without chunks never fits, because other software expects its trailer right after the header.
    """
    if intended.state is None or not intended.state.frame.nchunks:
        return False
    old, new = current.header, intended.header
    return len(old) == len(new) and new[_ATOMIC_HEADER:] == old[_ATOMIC_HEADER:]


def _is_mostly_dead(state: State) -> bool:
    """Whether most of a contiguous file is dead space, so that it is worth rewriting the whole file."""
    dead = _dead_nbytes(state, ledger_of(state))
    if dead is None:
        return False
    half = state.frame.frame_len // 2
    # A rewrite takes time for each chunk, even if it is not stored. So with very many chunks, several old indexes may
    # remain.
    return dead > max(half, _DEAD_LIMIT, state.frame.nchunks)


def _dead_nbytes(state: State, ledger: Ledger) -> int | None:
    """Return the number of dead bytes in a contiguous file; None if the sizes of its chunks are unknown.

    Up to the ledger's floor, kept states need all bytes except as many as the ledger counts as dead.
    """
    offsets, sizes = state.frame.offsets, state.sizes
    nbytes, above = sizes[:, 0], offsets >= ledger.floor
    if not nbytes[offsets >= 0].all():
        return None
    records = int(above.sum()) * record_nbytes(state.nblocks)
    live = int(nbytes[above].sum(dtype=np.int64)) + records
    return ledger.dead + max(0, state.frame.cbytes - ledger.floor) - live


# The next state, and its bytes.


def _pack_next(change: ChangeSet, current: Revision | None, facts: Facts, step: CommitStep) -> Plan:
    """Apply a change, pack the next state, and return the plan that leads to it by this step.

    LimitError: the file has no room for the chunks of kept states.
    """
    state = apply_change(change, _state_before(change, current))
    if state.layout is not None and state.layout.is_text:
        state = with_text_nbytes(state)
    if change.changes_values:
        state = with_stale_indexes(state)
    is_sparse = state.frame.frame_type == FrameType.SPARSE
    if step == CommitStep.APPEND and current is not None:
        end = current.frame.frame_len - current.frame.header_len
        placed = _place_chunks(change, state.frame.offsets, end)
    elif facts.header_room and change.extents.size:
        placed = _places_in_spool(change)
    else:
        placed = _place_chunks(change, state.frame.offsets, 0)
    offsets = placed.replace_new_codes(state.frame.offsets, change)
    cbytes = placed.end
    if is_sparse:
        stored_nbytes = _stored_nbytes(change, current, facts)
        cbytes = index.sparse_cbytes(stored_nbytes, offsets)
    coming = state.with_frame(offsets=offsets, cbytes=cbytes)
    kept = _pack_kept(change, current, facts, coming, placed)
    cbytes += len(kept.inside)
    had_data = current is not None and bool((current.frame.offsets >= 0).any())
    described = replace(
        state.frame if had_data else _with_filters(change, state),
        offsets=offsets,
        cbytes=cbytes,
        frame_len=0,
        nthreads_decompress=fingerprint.MARK,
        # The header tells only that there are variable-length metalayers.
        vlmetalayers=(*state.frame.vlmetalayers, (LAYER, b"")),
    )
    header, noted = frame.pack_header(described), state.annotations
    annotations = replace(
        noted,
        commit=_digest_of_commit(change, facts),
        header=header,
        next=change.next if is_sparse else noted.next,
        kept=kept.ledger,
    )
    is_ours = current is not None and current.frame.is_ours
    if current is not None and not is_ours:
        annotations = replace(annotations, takeovers=annotations.takeovers + 1)
    # Otherwise, the packed tables of the present state are valid for the next state.
    if not is_ours or change.numbers.size or change.is_structural:
        sizes, records = pack_fitting_sizes(state.sizes), pack_records(state.records)
        annotations = replace(annotations, sizes=sizes, records=records)
    if not facts.locks:
        annotations = annotations.with_commit_listed()
    layers = layers_with(described.vlmetalayers, annotations, facts.url)
    packed = frame.pack(replace(described, vlmetalayers=layers), header)
    if packed.frame.vlmetalayer(LAYER) is None:
        # There was no room for the annotations, so no reader will see them: derive the state from the frame alone.
        next_state = parse(packed.frame)
    else:
        next_state = replace(state, frame=packed.frame).with_annotations(annotations)
    has_room = bool(facts.header_room) and facts.header_room == len(packed.header)
    return Plan(
        step,
        packed.header,
        kept.inside + packed.tail,
        next_state,
        placed.pieces,
        has_room and step != CommitStep.APPEND,
        kept.objects,
    )


def _state_before(change: ChangeSet, current: Revision | None) -> State:
    """Return the state to which a change is made: the current one, or the first one of a new frame.

    ValueError: there is neither.
    """
    if current is not None:
        return current.state
    if change.new is None:
        raise ValueError("a change needs a state that it is made to, or a new frame")
    return change.new.state


class _Placed(NamedTuple):
    """Where the spooled chunks will be in the file, in bytes from the end of its header.

    `starts` has the place of each chunk, by its row in `ChangeSet.extents`, and `end` is the end of the last chunk.
    `pieces` has the ranges of the spool to copy there, as `Plan` has them.
    """

    starts: Int64Array
    pieces: Int64Array
    end: int

    def replace_codes(self, codes: Int64Array) -> Int64Array:
        """Return an index with places instead of codes; the same object if there are no codes to replace."""
        if not self.starts.size:  # keep the object, because the same index may be packed already
            return codes
        offsets = np.array(codes, np.int64)
        spooled = is_spooled(offsets)
        offsets[spooled] = self.starts[-1 - offsets[spooled]]
        return offsets

    def replace_new_codes(self, codes: Int64Array, change: ChangeSet) -> Int64Array:
        """Return the index `codes`, which `change` has just made, with places instead of its codes.

        This does the same as `replace_codes`. But it changes `codes` in place, unless the frame is new, and looks only
        at the chunks that the change puts, because no other chunk is in the spool.
        """
        if not (self.starts.size and change.numbers.size) or change.new is not None:
            return self.replace_codes(codes)
        spooled = is_spooled(change.codes)
        codes[change.numbers[spooled]] = self.starts[-1 - change.codes[spooled]]
        return codes


def _place_chunks(change: ChangeSet, codes: Int64Array, data_start: int) -> _Placed:
    """Place the spooled chunks of the next state one after the other from `data_start` on, in the order of the spool.

    `codes` is the index of the next state. Chunks that only a kept state has are placed as well, but no others.
    """
    if not change.extents.size:
        return _Placed(index.NO_OFFSETS, change.extents[:, ::2], data_start)
    # Do not search a large index: the change lists the new chunks in it.
    indexes = [codes if change.new is not None else change.codes]
    if change.keeps:
        indexes += [keep.state.frame.offsets for keep in change.keeps if keep.state is not None]
    spooled = [each[is_spooled(each)] for each in indexes]
    rows = np.unique(-1 - np.concatenate(spooled))
    pieces = change.extents[rows][:, ::2]
    nbytes = pieces[:, 1] - pieces[:, 0]
    stops = data_start + np.cumsum(nbytes)
    starts = np.zeros(len(change.extents), np.int64)
    starts[rows] = stops - nbytes
    return _Placed(starts, pieces, int(stops[-1]) if stops.size else data_start)


def _places_in_spool(change: ChangeSet) -> _Placed:
    """Leave all chunks in their places, because the spool's file becomes the frame."""
    return _Placed(change.extents[:, 0], change.extents[:, ::2], int(change.extents[-1, 2]))


# Kept states.


class _PackedKept(NamedTuple):
    """The packed ledger of the next state, and the packed kept states that it does not contain.

    The ones in `inside` are between the chunks and the index, and the ones in `objects` are separate, by name.
    """

    ledger: bytes | None
    inside: bytes = b""
    objects: Mapping[str, bytes] = {}


def _pack_kept(
    change: ChangeSet, current: Revision | None, facts: Facts, coming: State, placed: _Placed
) -> _PackedKept:
    """Pack the states that a change keeps, and the ledger that lists all kept states.

    `coming` is the state after the change, and `placed` has the places of its new chunks. LimitError: the file has no
    room for the chunks of kept states.
    """
    _require_room(change, current, coming, facts)
    is_ours = current is None or current.frame.is_ours
    if is_ours and not change.keeps and not change.drops:
        return _PackedKept(coming.annotations.kept)
    ledger = Ledger() if current is None else ledger_of(current.state)
    if not is_ours:
        ledger = ledger.suspect_all()
    if not change.keeps and not change.drops:
        return _PackedKept(ledger.pack())
    is_sparse = coming.frame.frame_type == FrameType.SPARSE
    # No other commit gives the same names to objects with kept states.
    salt = int.from_bytes(facts.salt[:8], "big")
    inside = b""
    objects: dict[str, bytes] = {}
    entries = [*ledger.without(change.drops).entries]
    stay = [coming, *(facts.kept or ())]
    for number, keep in enumerate(change.keeps, salt):
        kept = _with_places(keep, coming, placed)
        packed = pack_state(kept, frame.pack_header(kept.frame))
        entry = replace(
            keep.entry,
            generation=keep.entry.generation or _digest_of_commit(change, facts),
            place=0,
            packed=b"",
            shape=None if kept.layout is None else kept.layout.shape,
            nbytes=len(packed),
            digest=packed[-DIGEST_NBYTES:],
        )
        if not is_sparse and kept.frame.nchunks:
            entry = replace(entry, place=placed.end + len(inside))
            inside += packed
        elif not is_sparse or has_room(entries, packed):
            entry = replace(entry, packed=packed)
        else:
            entry = replace(entry, place=number % 2**63)
            objects[object_name(entry.place)] = packed
        entries.append(entry)
        stay.append(kept)
    floor = dead = 0
    if not is_sparse:
        floor = placed.end + len(inside)
        if (change.drops and facts.kept is not None) or current is None:
            packed_nbytes = sum(entry.nbytes for entry in entries if not entry.packed)
            dead = floor - packed_nbytes - _needed_nbytes(stay)
        else:
            # All bytes that were needed before, and the new bytes, count as needed.
            before = _dead_nbytes(coming, ledger)
            dead = ledger.dead if before is None else before
    ledger = Ledger(tuple(entries), floor, max(0, dead))
    return _PackedKept(ledger.pack(), inside, objects)


def _require_room(change: ChangeSet, current: Revision | None, coming: State, facts: Facts) -> None:
    """Raise LimitError if a contiguous file without chunks would have to hold the chunks of kept states.

    `coming` is the state after the change.
    """
    if coming.frame.frame_type == FrameType.SPARSE or coming.frame.nchunks:
        return
    entries = () if current is None else ledger_of(current.state).without(change.drops).entries
    names = [entry.title for entry in entries if not entry.packed]
    for keep in change.keeps:
        has_chunks = keep.state is not None and keep.state.frame.nchunks
        names += [keep.entry.title] if has_chunks else []
    if names:
        raise LimitError(
            f"{facts.url}: a file without chunks has no room for the chunks of the snapshots [{', '.join(names)}];"
            " drop them, keep some items, or copy the array with layout='sparse'"
        )


def _with_places(keep: Keep, coming: State, placed: _Placed) -> State:
    """Return the state that a change keeps, with places instead of codes in its index.

    Unless `keep` has an earlier state, it is the `coming` one.
    """
    if keep.state is None:
        return coming
    offsets = placed.replace_codes(keep.state.frame.offsets)
    state = with_text_nbytes(keep.state).with_frame(offsets=offsets, cbytes=placed.end)
    if state.frame.frame_type != FrameType.SPARSE:
        return state
    stored = int(state.sizes[state.frame.offsets >= 0, 0].sum(dtype=np.int64))
    return state.with_frame(cbytes=index.sparse_cbytes(stored, state.frame.offsets))


def _needed_nbytes(states: Iterable[State]) -> int:
    """Return the number of bytes of all chunks of these states in a contiguous file, with their records, each once."""
    places, sizes = [], []
    for state in states:
        stored = state.frame.offsets >= 0
        nbytes = state.sizes[stored, 0].astype(np.int64)
        places.append(state.frame.offsets[stored])
        sizes.append(nbytes + record_nbytes(state.nblocks))
    _, first = np.unique(np.concatenate(places), return_index=True)
    return int(np.concatenate(sizes)[first].sum())


def _with_filters(change: ChangeSet, state: State) -> Frame:
    """Return the frame of a state with the filters that other software will use for further chunks.

    If the filters depend on the data, the first chunk in the first commit with data determines them. Later commits do
    not change the header. Chunks that other processes have put do not count.
    """
    described = state.frame
    if ("filters", AUTO) not in state.annotations.cparams or change.filters is None:
        return described
    _, slots = change.filters
    filters, metas = [], []
    for fid, meta in zip(*slots, strict=True):
        # python-blosc2 would truncate the values that it writes, without rounding and without a bound.
        is_exact = fid != FilterId.TRUNC_PREC
        filters.append(fid if is_exact else 0)
        metas.append(meta if is_exact else 0)
    return replace(described, filters=tuple(filters), filters_meta=tuple(metas))


def _digest_of_commit(change: ChangeSet, facts: Facts) -> bytes:
    """Return a digest that identifies a commit: of its base, its chunks and the salt.

    Without it, two frames with equal metadata and different data could have the same generation. The salt distinguishes
    this commit from an earlier equal one.
    """
    digest = blake2b(change.base.encode(), digest_size=16, salt=facts.salt)
    digest.update(change.numbers.tobytes())
    digest.update(change.records.tobytes())
    return digest.digest()


# The sizes of chunks in files.

_NO_FILES = np.zeros(0, np.int64)


class _Files(NamedTuple):
    """The numbers of chunk files, and their sizes in bytes; 0 for an unknown size."""

    numbers: Int64Array
    nbytes: Int64Array


def _file_changes(change: ChangeSet, current: Revision | None) -> tuple[int, _Files, _Files]:
    """Return the total size of the files before a change, the files that leave the index, and the files that enter it.

    If b2array wrote the base, the sum in its header is correct, so this counts only added and removed chunks. Otherwise
    the size before is 0, and every file counts as added.
    """
    if current is None or not current.frame.is_ours:
        state = apply_change(change, _state_before(change, current))
        nothing = _files_among(_NO_FILES, _NO_FILES)
        return 0, nothing, _files_among(state.frame.offsets, state.sizes[:, 0])
    old, old_nbytes = current.frame.offsets, current.state.sizes[:, 0]
    before = current.frame.cbytes - index.sparse_cbytes(0, old)
    if change.is_structural:
        state = apply_change(change, current.state)
        new, new_nbytes = state.frame.offsets, state.sizes[:, 0]
    else:
        old, old_nbytes = old[change.numbers], old_nbytes[change.numbers]
        new, new_nbytes = change.codes, change.sizes[:, 0]
    removed = ~np.isin(old, new)
    added = ~np.isin(new, old)
    return before, _files_among(old[removed], old_nbytes[removed]), _files_among(new[added], new_nbytes[added])


def _files_among(numbers: Int64Array, nbytes: npt.NDArray[Any]) -> _Files:
    """Return the chunk files among entries of an index, with their sizes."""
    stored = numbers >= 0
    return _Files(numbers[stored], nbytes[stored].astype(np.int64))


def files_without_size(change: ChangeSet, current: Revision | None) -> list[int]:
    """Return the numbers of the chunk files whose sizes `plan` needs, but neither the index nor the change has."""
    if _state_before(change, current).frame.frame_type != FrameType.SPARSE:
        return []
    _, removed, added = _file_changes(change, current)
    return [*_without_size(removed), *_without_size(added)]


def _without_size(files: _Files) -> list[int]:
    """Return the numbers of the files whose sizes are unknown."""
    numbers: list[int] = files.numbers[files.nbytes == 0].tolist()
    return numbers


def _stored_nbytes(change: ChangeSet, current: Revision | None, facts: Facts) -> int:
    """Return the number of bytes of all chunks in a sparse frame after a change."""
    before, removed, added = _file_changes(change, current)
    return max(0, before - _total_nbytes(removed, facts) + _total_nbytes(added, facts))


def _total_nbytes(files: _Files, facts: Facts) -> int:
    """Return the total size of files in bytes, with unknown sizes from `facts`."""
    # A missing file takes no bytes.
    sizes = [facts.file_sizes.get(number, 0) for number in _without_size(files)]
    return int(files.nbytes.sum()) + sum(sizes)
