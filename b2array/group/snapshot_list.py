"""Lists the snapshots of a whole group, and compares a group at two of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from b2array.array.array_snapshots import Box, Boxes, SnapshotTable, box_text, differing, snapshot_info
from b2array.catalog.ledgers import MemberState, group_ledger
from b2array.catalog.manifest import ATTRS, is_attrs
from b2array.display.text_tables import html_rows, text_table
from b2array.format.state import State as FrameState
from b2array.frame.revision import Revision
from b2array.group.group_snapshot import SnapshotHome, find_snapshot, is_same_file
from b2array.group.homes import GroupHome
from b2array.group.snapshot_bytes import count_own_nbytes
from b2array.store.base import in_one_state

__all__ = ["GroupDiff", "diff_group", "list_snapshots"]


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


def list_snapshots(group: GroupHome) -> SnapshotTable:
    """List the snapshots of a group, the oldest first, with the bytes that no other snapshot needs.

    This lists the members again, and reads the indexes of all members and kept states. A damaged member counts as
    empty. If another writer drops a snapshot meanwhile, this begins again.
    """
    return in_one_state(lambda: _list_once(group))


def _list_once(group: GroupHome) -> SnapshotTable:
    """List the snapshots of a group, as `list_snapshots` does; ConflictError if another writer drops one meanwhile."""
    group.refresh()
    manifest = group.manifest
    entries = group_ledger(group.url, manifest).entries
    if not entries:
        return SnapshotTable()
    own = count_own_nbytes(group, manifest, entries)
    # The list of the members of a snapshot also belongs to this snapshot alone.
    return SnapshotTable(snapshot_info(entry, own[entry.name] + entry.nbytes) for entry in entries)


# Differences.


def diff_group(group: GroupHome, at: str, then: str | None) -> GroupDiff:
    """Compare a group at the snapshot `at` with the group at the snapshot `then`, or with the present group if None.

    This reads the indexes of members that differ, and no items. Raises KeyError if there is no such snapshot.
    """
    before = find_snapshot(group, at)
    later: SnapshotHome | _Now = _Now(group) if then is None else find_snapshot(group, then)
    new_paths: Mapping[str, str] = later.members()
    old_paths = before.members()
    changed: dict[str, list[Box]] = {}
    attrs = set()
    for name in sorted(old_paths.keys() & new_paths.keys()):
        if before.states[name] == later.states.get(name):
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
    return GroupDiff(_sort_members(added), _sort_members(deleted), changed, tuple(sorted(attrs)))


def _is_same_frame(old: Revision, new: Revision) -> bool:
    """Return whether two states are of one frame, so that equal offsets mean the same chunks."""
    # Each revision of a contiguous member is an object with chunks in other places, and a local file may have been
    # packed between the two reads.
    is_comparable = old.sparse or (old.store.can.local and is_same_file(old, new))
    return is_comparable and old.url == new.url and old.frame.frame_type == new.frame.frame_type


def _sort_members(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of members in order, without the names of groups' attributes."""
    return tuple(sorted(name for name in names if not is_attrs(name)))


class _Now:
    """The present members of a group, with the methods of `SnapshotHome` that a comparison uses."""

    # No list names the present states, so that each has to be loaded.
    states: Mapping[str, MemberState] = MappingProxyType({})

    def __init__(self, group: GroupHome) -> None:
        """Make the group list its members again at the next use."""
        self._group = group
        group.refresh()

    def members(self) -> Mapping[str, str]:
        """Return the path of each member by its name, without members of inner groups, which snapshots do not have."""
        members = self._group.members()
        return self._group.own_members(members)

    def state_of(self, path: str, *, deep: bool = False) -> Revision:  # noqa: ARG002
        """Load the present state of a member."""
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
    """Return the boxes that may differ between two states, or None for equal ones; and whether their attributes differ.

    The boxes are empty for super-chunks that differ. With `is_same_frame`, chunks at equal offsets are equal.
    """
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
