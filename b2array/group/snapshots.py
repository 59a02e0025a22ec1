"""Snapshots of a group, as users see them: all members and attributes at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from b2array import threads
from b2array.array import snapshots
from b2array.array.snapshots import Box, SnapshotInfo, differing, own_nbytes, snapshot_info
from b2array.commit.handle import Handle
from b2array.errors import B2ArrayError
from b2array.format.kept import Kept
from b2array.format.state import State as FrameState
from b2array.frame import snapshot
from b2array.frame.kept import find_state
from b2array.frame.listing import MemberState, group_ledger
from b2array.frame.manifest import ATTRS, Manifest, is_attrs, is_embedded, retired_path
from b2array.frame.snapshot import Snapshot, ledger_in, load_kept_states, load_published
from b2array.group.kept import Moment, is_same_file, moment
from b2array.group.listed import AnyGroup, ListedGroup, name_of
from b2array.group.local import LocalGroup

__all__ = ["GroupDiff", "differences", "listed"]

_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class GroupDiff:
    """How a group differs between two moments, as `Group.diff` returns it.

    Parameters
    ----------
    made, deleted : tuple of str
        Names of members that only the later moment has, and of those that only the earlier one has.
    changed : dict
        By the names of members that both have: the boxes in which an array may differ, as `NDArray.diff` returns them;
        for a super-chunk a list with nothing in it. A member that was replaced has one box with everything.
    attrs : tuple of str
        The names of members and groups with other attributes; the outermost group is "".
    """

    made: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    changed: Mapping[str, list[Box]] = field(default_factory=dict)
    attrs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.made or self.deleted or self.changed or self.attrs)


# Lists.


def listed(group: AnyGroup) -> tuple[SnapshotInfo, ...]:
    """List the snapshots of a group, the oldest first, with the bytes that each of them holds alone."""
    group.refresh()
    manifest, members = group.manifest, group.members()
    entries = group_ledger(group.url, manifest).entries
    if not entries:
        return ()
    if isinstance(group, ListedGroup) and manifest == group.manifest:
        return _of_revisions(group, manifest, entries)
    moments = [moment(group, entry.name, manifest) for entry in entries]
    own = {entry.name: entry.nbytes for entry in entries}
    paths = sorted({state.path for then in moments for state in then.states.values()})
    paths = [path for path in paths if not is_embedded(path)]

    def look(path: str) -> dict[str, int]:
        return _own_of_member(group, manifest, moments, path, is_member=path in members.values())

    def look_aside(token: str) -> dict[str, int]:
        with suppress(OSError, B2ArrayError):  # a damaged frame does not hide the snapshots
            held = snapshot.load(group.store_of(retired_path(token)))
            return {each.name: each.nbytes for each in snapshots.list_snapshots(Handle(held, "r"), alone=True)}
        return {}

    alone = [
        *threads.ahead(look, paths, max(1, min(len(paths), _AT_ONCE))),
        *threads.ahead(look_aside, [*manifest.retired], max(1, min(len(manifest.retired), _AT_ONCE))),
    ]
    for counted in alone:
        for name, nbytes in counted.items():
            if name in own:
                own[name] += nbytes
    return tuple(snapshot_info(entry, own[entry.name]) for entry in entries)


def _own_of_member(
    group: AnyGroup, manifest: Manifest, moments: Sequence[Moment], path: str, *, is_member: bool
) -> dict[str, int]:
    """Return the bytes of a local member that each snapshot holds alone, by the snapshot's name."""
    identity, users = manifest.identity.encode(), dict[bytes, list[str]]()
    states: list[FrameState] = []
    with suppress(OSError, B2ArrayError):  # a damaged member does not hide the snapshots
        held = group.state_of(path, manifest) if isinstance(group, LocalGroup) else load_published(group.store_of(path))
        for then in moments:
            for state in then.states.values():
                if state.path == path and not then.is_retired(path):
                    users.setdefault(state.generation, []).append(then.name)
                    if len(users[state.generation]) == 1:
                        earlier = find_state(held, state, identity)
                        states.append(held.state if earlier is None else earlier.state)
        others = [each.state for each in load_kept_states(held, ledger_in(held).entries) if not _is_of(each, identity)]
        own = own_nbytes([*states, *others, *([held.state] if is_member else [])])
        return {names[0]: nbytes for names, nbytes in zip(users.values(), own, strict=False) if len(names) == 1}
    return {}


def _is_of(held: Snapshot, group: bytes) -> bool:
    """Whether a frame keeps a state for snapshots of a group."""
    return held.at is not None and held.at.group == group


def _of_revisions(group: ListedGroup, manifest: Manifest, entries: Sequence[Kept]) -> tuple[SnapshotInfo, ...]:
    """List the snapshots of a group in an object store, which name revisions."""
    moments = [moment(group, entry.name, group.manifest) for entry in entries]
    wanted = {state for then in moments for state in then.states.values() if not is_embedded(state.path)}
    wanted |= {
        MemberState(row.path, bytes.fromhex(row.revision), row.sparse) for row in group.rows.values() if row.revision
    }

    def look(state: MemberState) -> tuple[MemberState, Snapshot | None]:
        with suppress(OSError, B2ArrayError):  # a damaged member does not hide the snapshots
            return state, group.state_at(manifest, "", state)
        return state, None

    answers = threads.ahead(look, sorted(wanted), max(1, min(len(wanted), _AT_ONCE)))
    held = {state: one for state, one in answers if one is not None}
    own = dict.fromkeys((entry.name for entry in entries), 0)
    for path in {state.path for state in held}:
        here = [state for state in held if state.path == path]
        for state, nbytes in zip(here, snapshots.own_nbytes([held[state].state for state in here]), strict=True):
            users = [then.name for then in moments if state in then.states.values()]
            if len(users) == 1 and not _is_listed(group, state):
                own[users[0]] += nbytes
    return tuple(snapshot_info(entry, own[entry.name] + entry.nbytes) for entry in entries)


def _is_listed(group: ListedGroup, state: MemberState) -> bool:
    row = group.rows.get(name_of(state.path))
    return row is not None and (row.path, row.revision) == (state.path, state.generation.hex())


# Differences.


def differences(group: AnyGroup, at: str, then: str | None) -> GroupDiff:
    """Compare a group at two snapshots, or at one and now."""
    before = moment(group, at)
    later: Moment | _Now = _Now(group) if then is None else moment(group, then)
    names: Mapping[str, str] = later.members()
    old = before.members()
    changed: dict[str, list[Box]] = {}
    attrs = set()
    for name in sorted(old.keys() & names.keys()):
        if isinstance(later, Moment) and before.states[name] == later.states[name]:
            continue
        one, other = before.held(old[name], deep=True), later.held(names[name], deep=True)
        if one.generation == other.generation:
            continue
        # Each revision of a contiguous member is an object in itself, with chunks in other places. A file may have been
        # packed between the two looks.
        is_comparable = one.sparse or (one.store.can.local and is_same_file(one, other))
        is_same_frame = is_comparable and one.url == other.url and one.frame.frame_type == other.frame.frame_type
        boxes, has_other_attrs = _compared(one.state, other.state, is_same_frame=is_same_frame)
        if is_attrs(name):
            if has_other_attrs:
                attrs.add(_group_of(name))
            continue
        if boxes is not None:
            changed[name] = boxes
        if has_other_attrs:
            attrs.add(name)
    made, deleted = names.keys() - old.keys(), old.keys() - names.keys()
    attrs |= {_group_of(name) for name in made | deleted if is_attrs(name)}
    arrays = [tuple(sorted(name for name in some if name.rpartition("/")[2] != ATTRS)) for some in (made, deleted)]
    return GroupDiff(arrays[0], arrays[1], changed, tuple(sorted(attrs)))


class _Now:
    """The members as they are now."""

    def __init__(self, group: AnyGroup) -> None:
        self._group = group
        group.refresh()

    def members(self) -> Mapping[str, str]:
        """Return the path of each member by its name; a snapshot has none of a group inside this one."""
        members = self._group.members()
        return self._group.without_mounts(members) if isinstance(self._group, LocalGroup) else members

    def held(self, path: str, *, deep: bool = False) -> Snapshot:  # noqa: ARG002
        """Return the state of a member."""
        return self._group.open(path, "r").snapshot


def _group_of(name: str) -> str:
    return name.removesuffix(ATTRS).rstrip("/")


def _compared(one: FrameState, other: FrameState, *, is_same_frame: bool) -> tuple[list[Box] | None, bool]:
    """Return the boxes in which two states differ, None if they do not, and whether their attributes differ."""
    names = {*one.attr_names} | {*other.attr_names}
    a, b = one.annotations, other.annotations
    has_other_attrs = (a.dims, a.fill) != (b.dims, b.fill) or any(one.attr(name) != other.attr(name) for name in names)
    if one.layout is None or other.layout is None:
        same = is_same_frame and one.frame.offsets.tolist() == other.frame.offsets.tolist()
        return (None if same else []), has_other_attrs
    if is_same_frame:
        return differing(one, other) or None, has_other_attrs
    shape = (one if len(one.layout.shape) >= len(other.layout.shape) else other).require_layout().shape
    if len(one.layout.shape) == len(other.layout.shape):
        shape = tuple(map(max, one.layout.shape, other.layout.shape))
    return [tuple(slice(0, extent) for extent in shape)], has_other_attrs
