"""How a transaction shuts out writers of single members in an object store, which has no locks.

`b2array.engine.single` says who these writers are, and what they look at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from b2array.engine.commit import renew
from b2array.engine.draft import Draft
from b2array.engine.manifest import Manifest
from b2array.engine.single import LOOKS, may_replace, wait
from b2array.engine.snapshot import Snapshot, reload
from b2array.errors import B2ArrayError, ConflictError
from b2array.format.annotations import GroupCommit
from b2array.group.directory import Directory
from b2array.store.base import MISSING, Store, Version

__all__ = ["Holds", "told_if_gone"]


class Holds:
    """The members of a group that one transaction holds: nobody else replaces the states that it has seen of them.

    The manifest has a mark for each.
    """

    def __init__(self, group: Directory) -> None:
        self._group = group
        self._held: dict[str, str] = {}  # tokens by paths
        self._tokens: set[str] = set()  # all that were ever written
        self._looks = 0  # at members that other transactions hold
        self._renewals: dict[str, str] = {}  # by the generation of a state, that of the equal one which it has replaced

    def is_open(self, path: str, member: Snapshot | Draft, manifest: Manifest) -> bool:
        """Whether a writer who knows nothing of the commit to come may be about to replace the state of a member."""
        held = member.base if isinstance(member, Draft) else member
        if held is None or not held.store.can.compare:
            return False
        if not held.state.annotations.is_member(manifest.identity, path):
            return True
        return path in manifest.writing and manifest.holder(path) != self._held.get(path)

    def take(self, members: Mapping[str, Snapshot | Draft], manifest: Manifest, version: Version | None) -> bool:
        """Shut out other writers of members, as far as none is faster. Drafts go on from the states that are held.

        False: nothing has happened, but other transactions, which hold members, had some time to go first.
        """
        others = {manifest.holder(path) for path in members} - self._tokens - {""}
        if others and self._looks < LOOKS:
            self._looks += 1
            wait(self._looks)
            return False
        states = {path: _newest(member) if isinstance(member, Draft) else member for path, member in members.items()}
        # A new token each time, so that the mark of a state that another writer has replaced is not taken for this one.
        token = os.urandom(8).hex()
        self._tokens.add(token)
        marked = manifest.with_held(states, token)
        try:
            self._group.write(marked, version)
        except ConflictError:
            return False
        for path, held in states.items():
            with told_if_gone(held.store):
                renewed = self._renewed(path, held, manifest.identity)
            if renewed is None:
                continue
            self._held[path] = token
            self._renewals[renewed.generation] = held.generation
            member = members[path]
            if isinstance(member, Draft):
                member.rebase(renewed, is_equal=True)
        return True

    def _renewed(self, path: str, held: Snapshot, identity: str) -> Snapshot | None:
        """Replace a state by an equal one that notes the group. None: another writer was faster."""
        annotations = held.state.annotations
        if annotations.group_commit is not None and annotations.is_member(identity, path):
            return renew(held, annotations.group_commit)
        # It may be in another group, too.
        return renew(held, GroupCommit(identity, 0, path)) if may_replace(held) else None

    def generation_before(self, held: Snapshot) -> str:
        """Return the generation that a state had before it was replaced by equal ones here."""
        generation = held.generation
        while generation in self._renewals:
            generation = self._renewals[generation]
        return generation

    def released(self, manifest: Manifest) -> Manifest:
        """Return a manifest in which other writers can go on."""
        return manifest.released(self._tokens) if self._tokens else manifest

    def release(self) -> None:
        """Let other writers go on."""
        if self._tokens:
            with suppress(OSError, B2ArrayError):  # otherwise they wait a moment
                self._group.update(self.released)


def _newest(draft: Draft) -> Snapshot:
    """Put a draft on the newest state of its member, and return that; ConflictError if it is gone."""
    if draft.base is None:
        raise ValueError(f"{draft.url}: a new member has no state to hold")
    with told_if_gone(draft.store):
        draft.rebase(reload(draft.base))
    return draft.base


@contextmanager
def told_if_gone(store: Store) -> Iterator[None]:
    """Raise ConflictError if a member is missing that a transaction is about to change."""
    try:
        yield
    except MISSING:
        raise ConflictError(f"{store.url} was deleted or moved since it was opened") from None
