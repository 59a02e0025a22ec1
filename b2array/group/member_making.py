"""`make_member`: makes a new member of a group by its URL, for the functions that make arrays and super-chunks."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from b2array.array.drafts import AnyPlace, ArrayOptions, Kind
from b2array.array.frame_making import NewDraft
from b2array.catalog.group_places import Place
from b2array.catalog.manifest import MANIFEST, check_name
from b2array.commit.draft import Draft
from b2array.commit.frame_commit import commit
from b2array.commit.handle import Handle
from b2array.group import whole
from b2array.group.blosc2_tables import DESCRIPTION
from b2array.group.group import Group, put_member, require_free_name
from b2array.group.homes import GroupHome
from b2array.store.locks import holds_locks

__all__ = ["make_member"]


def make_member(
    place: Place,
    options: ArrayOptions,
    suffix: str,
    new: NewDraft,
) -> Handle:
    """Make a member of a group in one commit, and return its handle. With `options.overwrite`, replace a member.

    Before, complete an interrupted commit. `new` makes the draft at a place with the final options. If the group's lock
    cannot be taken, make only the file of the member, which the directory then lists. Raises RuntimeError if such a
    file would replace a member of a group with snapshots; also the errors of `Group.create`, and ReadOnlyError for an
    archive.
    """
    home = whole.home_to_change(place, options.storage_options or {})
    _show_near(home, check_name(place.name))
    group = Group(home, "", "r+")
    name = require_free_name(group, place.name, overwrite=options.overwrite)
    if home.is_local and not _can_lock(home):
        # Without the group's lock, make a frame like a program that does not know the group: the directory lists it.
        if name in home.members() and home.manifest.kept:
            raise RuntimeError(
                f"{home.url}: snapshots need {name!r}; only a user who may lock the group can replace this member"
            )
        address = home.address(f"{name}{suffix}")
        return Handle(commit(new(address, replace(options, fs=None))), "r+")

    def draft(url: AnyPlace, *, overwrite: bool, layout: Kind = "auto") -> Draft:
        """Return a draft of the member with the user's options, and the storage options of the group."""
        wanted = options.layout if options.layout != "auto" else layout
        final = replace(
            options,
            layout=wanted,
            overwrite=overwrite,
            storage_options=home.storage_options,
            fs=None,
        )
        return new(url, final)

    return put_member(home, name, suffix, draft, overwrite=options.overwrite)


def _can_lock(home: GroupHome) -> bool:
    """Take and release the group's lock; return whether this thread may do that, and can do it without a deadlock."""
    # If this thread holds the lock of a member, a commit with the group's lock may be waiting for it: a deadlock.
    if holds_locks():
        return False
    try:
        with home.store.lock(MANIFEST):
            return True
    except PermissionError:
        # The user may own only a directory inside the group.
        return False


def _show_near(home: GroupHome, name: str) -> None:
    """Complete an interrupted commit, and show the members that decide whether a new member can have a name.

    A group may have very many other members. If this thread holds a lock, the commit is not completed.
    """
    # Recovery takes the group's lock; see `_can_lock`.
    if not holds_locks():
        home.recover()
    # A part of a table cannot be made alone.
    outer = accumulate(name.split("/")[:-1], "{}/{}".format)
    home.show_near([name, *(f"{each}/{DESCRIPTION}" for each in outer)])
