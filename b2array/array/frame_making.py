"""`make`: a new frame at a URL, alone or as a member of the group that the URL leads into.

Groups make their members, but the package of groups is above this package. So the package b2array calls `join_groups`
with the necessary functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from b2array.array.drafts import AnyPlace, ArrayOptions, Url
from b2array.catalog.group_places import Place, group_for_new_frame
from b2array.catalog.manifest import ARRAY
from b2array.commit.draft import Draft
from b2array.commit.frame_commit import commit
from b2array.commit.handle import Handle
from b2array.store.open import address_of

__all__ = ["NewDraft", "join_groups", "make", "member_at"]

NewDraft = Callable[[AnyPlace, ArrayOptions], Draft]
"""A function that makes the draft of a new frame in a place, with options."""


class MemberMaker(Protocol):
    """A function that makes a member of a group."""

    def __call__(self, place: Place, options: ArrayOptions, suffix: str, new: NewDraft) -> Handle:
        """Make the member in one commit, and return its handle."""
        ...


_makers: dict[str, MemberMaker] = {}


def join_groups(make_member: MemberMaker) -> None:
    """Set the function that makes the members of groups."""
    _makers["member"] = make_member


def make(url: Url | None, options: ArrayOptions, new: NewDraft, suffix: str = ARRAY) -> Handle:
    """Make a new frame in one commit, and return a handle that can change it.

    If the URL leads into a group, the frame becomes the member that the URL names, with or without the ending of the
    file. The suffix determines the kind of the member.
    """
    place = member_at(url, options)
    if place is None:
        return Handle(commit(new(url, options)), "r+")
    if url is not None and os.fsdecode(url).endswith("/") and options.layout == "auto":
        options = replace(options, layout="sparse")  # the URL of a directory
    return _makers["member"](place, options, suffix, new)


def member_at(url: Url | None, options: ArrayOptions) -> Place | None:
    """Return the member of a group that a new frame at a URL will be; None outside of groups."""
    if url is None:
        return None
    place = group_for_new_frame(*address_of(url, options.storage_options, options.fs))
    return place if place is not None and place.name else None
