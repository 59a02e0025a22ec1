"""Snapshots of a whole group: restores and lists them, and compares a group at two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from b2array import threads
from b2array.array import array_snapshots
from b2array.array.array_snapshots import Box, Boxes, SnapshotTable, box_text, differing, own_nbytes, snapshot_info
from b2array.catalog import owners
from b2array.catalog.intact import find_state
from b2array.catalog.ledgers import MemberState, group_ledger, lists, state_in
from b2array.catalog.manifest import ATTRS, Manifest, is_attrs, is_embedded, name_of, retired_path
from b2array.catalog.owners import load_published
from b2array.commit.handle import Handle
from b2array.display.text_tables import html_rows, text_table
from b2array.errors import B2ArrayError
from b2array.format.ledger import Kept
from b2array.format.state import State as FrameState
from b2array.frame.kept_states import ledger_in, load_kept_states
from b2array.frame.revision import Revision
from b2array.group.group_snapshot import Moment, is_same_file, moment, moment_of
from b2array.group.listed_group import AnyGroup, ListedGroup
from b2array.group.local_group import LocalGroup
from b2array.store.base import in_one_state

__all__ = ["GroupDiff", "diff_moments", "list_snapshots"]

_AT_ONCE = 16
A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class GroupDiff:
    """The differences of a group between two moments, as `Group.diff` returns them.

    Parameters
    ----------
    made, deleted : tuple of str
        The names of members that exist only at the later moment, and only at the earlier one.
    changed : dict
        For each member that exists at both moments and may differ, by name: the boxes that may differ, as
        `NDArray.diff` returns them; one box for the whole array if it was replaced; an empty list for a super-chunk.
    attrs : tuple of str
        The names of members and groups whose attributes differ; the outermost group is "".
    """

    made: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    changed: Mapping[str, list[Box]] = field(default_factory=dict)
    attrs: tuple[str, ...] = ()

    def _rows(self) -> list[tuple[str, str, str]]:
        """Return a row for each difference: what happened, the name, and the keys that may differ."""
        rows = [("made", name, "") for name in self.made]
        rows += [("deleted", name, "") for name in self.deleted]
        for name, boxes in self.changed.items():
            rows.append(("changed", name, " ".join(map(box_text, boxes))))
        rows += [("attributes", name or "/", "") for name in self.attrs]
        return rows

    def __repr__(self) -> str:
        return "\n".join(text_table(self._rows(), "<<<")) if self else "no difference"

    def _repr_html_(self) -> str:
        return html_rows(("what", "member", "may differ"), self._rows()) if self else "no difference"

    def __bool__(self) -> bool:
        return bool(self.made or self.deleted or self.changed or self.attrs)


# Lists.


def list_snapshots(group: AnyGroup) -> SnapshotTable:
    """List the snapshots of a group, the oldest first, with the bytes that no other snapshot needs.

    This lists the members again, and reads the indexes of all members and kept states. A damaged member counts as
    empty. If another writer drops a snapshot meanwhile, this begins again.
    """
    return in_one_state(lambda: _list(group))


def _list(group: AnyGroup) -> SnapshotTable:
    """List the snapshots of a group; ConflictError if another writer drops one meanwhile."""
    group.refresh()
    manifest = group.manifest
    entries = group_ledger(group.url, manifest).entries
    if not entries:
        return SnapshotTable()
    if isinstance(group, ListedGroup) and manifest == group.manifest:
        return _list_by_revisions(group, manifest, entries)
    members = group.members()
    moments = [moment_of(group, entry, manifest) for entry in entries]
    own_paths = sorted({state.path for state in _states_at(moments)})

    def count_in_member(path: str) -> dict[str, int]:
        """Count the bytes of a member's frame that only one snapshot needs, by the name of the snapshot."""
        is_member = path in members.values()
        return _count_own_nbytes(group, manifest, moments, path, is_member=is_member)

    def count_in_retired(token: str) -> dict[str, int]:
        """Count the bytes of a retired frame that only one snapshot needs, by the name of the snapshot."""
        # A damaged frame must not hide the snapshots: it counts as empty.
        with suppress(OSError, B2ArrayError):
            source = owners.load(group.store_of(retired_path(token)))
            infos = array_snapshots.list_snapshots(Handle(source, "r"), alone=True)
            return {each.name: each.nbytes for each in infos}
        return {}

    counts = [
        *_call_each(count_in_member, own_paths),
        *_call_each(count_in_retired, [*manifest.retired]),
    ]
    own = dict.fromkeys((entry.name for entry in entries), 0)
    for count in counts:
        for name, nbytes in count.items():
            # A retired frame may also keep states of snapshots that were dropped since.
            if name in own:
                own[name] += nbytes
    return _describe(entries, own)


def _describe(entries: Sequence[Kept], own: Mapping[str, int]) -> SnapshotTable:
    """Describe snapshots, given the bytes of members that only one snapshot needs, by its name."""
    # The list of the members of a snapshot also belongs to this snapshot alone.
    return SnapshotTable(snapshot_info(entry, own[entry.name] + entry.nbytes) for entry in entries)


def _states_at(moments: Sequence[Moment]) -> set[MemberState]:
    """Return the states of all members at some snapshots, without embedded members, whose frame keeps no states."""
    states: set[MemberState] = set()
    for then in moments:
        states.update(then.states.values())
    return {state for state in states if not is_embedded(state.path)}


def _call_each(function: Callable[[A], R], arguments: Sequence[A]) -> Iterator[R]:
    """Call a function with each argument, in several threads, and yield the results in order.

    Each call waits for requests, so threads save time.
    """
    workers = max(1, min(len(arguments), _AT_ONCE))
    return threads.ahead(function, arguments, workers)


def _count_own_nbytes(
    group: AnyGroup,
    manifest: Manifest,
    moments: Sequence[Moment],
    path: str,
    *,
    is_member: bool,
) -> dict[str, int]:
    """Count the bytes of a member's frame that only one snapshot needs, by the name of the snapshot.

    This reads the member and its kept states. A damaged member counts as empty. With `is_member`, bytes that the
    present state needs do not count.
    """
    identity = manifest.identity.encode()
    users: dict[bytes, list[str]] = {}
    states: list[FrameState] = []
    # A damaged member must not hide the snapshots: it counts as empty.
    with suppress(OSError, B2ArrayError):
        if isinstance(group, LocalGroup):
            source = group.state_of(path, manifest)
        else:
            source = load_published(group.store_of(path))
        for then in moments:
            for state in then.states.values():
                if state.path != path or then.is_retired(path):
                    continue
                names = users.setdefault(state.generation, [])
                names.append(then.name)
                if len(names) == 1:
                    earlier = find_state(source, state, identity)
                    states.append(source.state if earlier is None else earlier.state)
        # Dropping the group's snapshots does not free chunks of the present state or of the array's own snapshots.
        rest = [source.state] if is_member else []
        kept = load_kept_states(source, ledger_in(source).entries)
        rest += [each.state for each in kept if not _is_of(each, identity)]
        own = own_nbytes([*states, *rest])
        pairs = zip(users.values(), own, strict=False)
        return {names[0]: nbytes for names, nbytes in pairs if len(names) == 1}
    return {}


def _is_of(source: Revision, group: bytes) -> bool:
    """Return whether a frame keeps a state for snapshots of a group, not for a snapshot of the array itself."""
    return source.at is not None and source.at.group == group


def _list_by_revisions(
    group: ListedGroup,
    manifest: Manifest,
    entries: Sequence[Kept],
) -> SnapshotTable:
    """List the snapshots of a group in an object store, whose snapshots name revisions of the members.

    This reads all these revisions. A damaged revision counts as empty.
    """
    moments = [moment_of(group, entry, group.manifest) for entry in entries]
    wanted = _states_at(moments)
    # Include the present revisions: dropping a snapshot does not free the chunks that they need.
    for row in group.rows.values():
        if row.generation:
            wanted.add(state_in(row))

    def load(state: MemberState) -> tuple[MemberState, Revision | None]:
        """Load the state of a member, and return it behind its description; None if it is lost or damaged."""
        # A damaged member must not hide the snapshots: it counts as empty.
        with suppress(OSError, B2ArrayError):
            return state, group.state_at(manifest, "", state)
        return state, None

    loaded = _call_each(load, sorted(wanted))
    sources = {state: source for state, source in loaded if source is not None}
    own = dict.fromkeys((entry.name for entry in entries), 0)
    for path in {state.path for state in sources}:
        here = [state for state in sources if state.path == path]
        counts = own_nbytes([sources[state].state for state in here])
        for state, nbytes in zip(here, counts, strict=True):
            users = [then.name for then in moments if state in then.states.values()]
            if len(users) == 1 and not lists(group.rows.get(name_of(path)), state):
                own[users[0]] += nbytes
    return _describe(entries, own)


# Differences.


def diff_moments(group: AnyGroup, at: str, then: str | None) -> GroupDiff:
    """Compare a group at the snapshot `at` with the group at the snapshot `then`, or with the present group if None.

    This reads the indexes of members that differ, and no items. Raises KeyError if there is no such snapshot.
    """
    before = moment(group, at)
    later: Moment | _Now = _Now(group) if then is None else moment(group, then)
    new_paths: Mapping[str, str] = later.members()
    old_paths = before.members()
    changed: dict[str, list[Box]] = {}
    attrs = set()
    for name in sorted(old_paths.keys() & new_paths.keys()):
        if isinstance(later, Moment) and before.states[name] == later.states[name]:
            continue
        old = before.state_of(old_paths[name], deep=True)
        new = later.state_of(new_paths[name], deep=True)
        if old.generation == new.generation:
            continue
        is_same_frame = _is_same_frame(old, new)
        boxes, has_other_attrs = _compare_states(old.state, new.state, is_same_frame=is_same_frame)
        if has_other_attrs:
            attrs.add(_group_of(name) if is_attrs(name) else name)
        if boxes is not None and not is_attrs(name):
            changed[name] = Boxes(boxes)
    added = new_paths.keys() - old_paths.keys()
    deleted = old_paths.keys() - new_paths.keys()
    attrs |= {_group_of(name) for name in added | deleted if is_attrs(name)}
    return GroupDiff(_sort_arrays(added), _sort_arrays(deleted), changed, tuple(sorted(attrs)))


def _is_same_frame(old: Revision, new: Revision) -> bool:
    """Return whether two states are of one frame, so that equal offsets mean the same chunks."""
    # Each revision of a contiguous member is an object with chunks in other places, and a local file may have been
    # packed between the two reads.
    is_comparable = old.sparse or (old.store.can.local and is_same_file(old, new))
    return is_comparable and old.url == new.url and old.frame.frame_type == new.frame.frame_type


def _sort_arrays(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of members in order, without frames of attributes."""
    return tuple(sorted(name for name in names if not is_attrs(name)))


class _Now:
    """The present members of a group, with the methods of `Moment` that a comparison uses."""

    def __init__(self, group: AnyGroup) -> None:
        """Make the group list its members again at the next use."""
        self._group = group
        group.refresh()

    def members(self) -> Mapping[str, str]:
        """Return the path of each member by its name; a snapshot has none of a group inside this one."""
        members = self._group.members()
        return self._group.own_members(members)

    def state_of(self, path: str, *, deep: bool = False) -> Revision:  # noqa: ARG002
        """Load the state of a member."""
        return self._group.open(path, "r").revision


def _group_of(name: str) -> str:
    """Return the name of the group whose attributes are in the frame with this name."""
    return name.removesuffix(ATTRS).rstrip("/")


def _compare_states(
    one: FrameState,
    other: FrameState,
    *,
    is_same_frame: bool,
) -> tuple[list[Box] | None, bool]:
    """Return the boxes that may differ between two states, None for equal ones; and whether their attributes differ."""
    names = {*one.attr_names} | {*other.attr_names}
    a, b = one.annotations, other.annotations
    has_other_attrs = (a.dims, a.fill) != (b.dims, b.fill)
    has_other_attrs = has_other_attrs or any(one.attr(name) != other.attr(name) for name in names)
    if one.layout is None or other.layout is None:
        same = is_same_frame and one.frame.offsets.tolist() == other.frame.offsets.tolist()
        return (None if same else []), has_other_attrs
    if is_same_frame:
        return differing(one, other) or None, has_other_attrs
    # The indexes do not show which chunks are equal, so one box covers both shapes.
    first, second = one.layout.shape, other.layout.shape
    if len(first) == len(second):
        shape = tuple(map(max, first, second))
    else:
        shape = max(first, second, key=len)
    return [tuple(slice(0, extent) for extent in shape)], has_other_attrs
