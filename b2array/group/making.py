"""`make_member`: makes the member of a group that a URL names, for the functions that make arrays and super-chunks."""

from __future__ import annotations

from dataclasses import replace

from b2array.array.drafts import AnyPlace, ArrayOptions, Kind
from b2array.array.making import NewDraft
from b2array.commit.draft import Draft
from b2array.commit.handle import Handle
from b2array.commit.one import commit
from b2array.frame.manifest import MANIFEST, check_name
from b2array.frame.places import Place
from b2array.group import whole
from b2array.group.archive import Archive, changed_as_a_whole
from b2array.group.group import Group, free_name, put_member
from b2array.group.local import LocalGroup
from b2array.store.locks import holds_locks

__all__ = ["make_member"]


def make_member(place: Place, options: ArrayOptions, suffix: str, new: NewDraft) -> Handle:
    """Make a member of a group in one commit, and return its handle. It may replace one, if the options say so.

    Raises what `Group.create` raises, and ReadOnlyError for an archive.
    """
    home = whole.home_of(place.group, options.storage_options or {})
    if isinstance(home, Archive):
        raise changed_as_a_whole(place)
    if isinstance(home, LocalGroup):
        _list_near(home, check_name(place.name))
    group = Group(home, "", "r+")
    name = free_name(group, place.name, overwrite=options.overwrite)
    if isinstance(home, LocalGroup) and not _may_lock(home):
        if name in home.members() and home.manifest.kept:
            raise RuntimeError(f"{home.url}: snapshots need {name!r}, which only who may lock the group can replace")
        return Handle(commit(new(home.address(f"{name}{suffix}"), replace(options, fs=None))), "r+")

    def draft(url: AnyPlace, *, overwrite: bool, layout: Kind = "auto") -> Draft:
        wanted = options.layout if options.layout != "auto" else layout
        final = replace(options, layout=wanted, overwrite=overwrite, storage_options=home.storage_options, fs=None)
        return new(url, final)

    return put_member(home, name, suffix, draft, overwrite=options.overwrite)


def _may_lock(home: LocalGroup) -> bool:
    """Say whether a commit of the group is possible: a directory in somebody else's group may be ours."""
    if holds_locks():  # of a member, perhaps, for which a commit waits that holds the group's
        return False
    try:
        with home.store.lock(MANIFEST):
            return True
    except PermissionError:
        return False


def _list_near(home: LocalGroup, name: str) -> None:
    """Let a local group list only what decides about a new member: it may have very many others."""
    if not holds_locks():
        home.recover()
    manifest = home.stored()
    near = home.around([name], manifest)
    for path, each in home.paths_of([name], manifest).items():
        near.add(each, path)
    home.show(manifest, near)
