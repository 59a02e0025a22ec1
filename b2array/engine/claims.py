"""Claims: how a transaction of a group holds writers of a single member back in a store without locks.

A commit of a group writes the manifest, and then the index of each changed member. An object store compares the version
of one object while it writes, not that of two. So a writer of a single member could replace the index in between, on
top of the state from before the commit, and the commit would be lost for this member. Therefore a transaction claims
each member first: it commits a state whose only news is the path of the member in the group. Whoever finds a claim
looks at the manifest before he writes: `release`. If the commit is there, he carries it out. Else he waits for it; and
at last he writes the manifest anew. Then the transaction cannot happen any more, because it compares the manifest, and
it begins its commit again.

Other transactions need not wait: they compare the manifest, too. They claim the member again, on the same state.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from b2array import config
from b2array.engine.manifest import MANIFEST, Manifest
from b2array.engine.redo import carry_out, look, look_by
from b2array.engine.snapshot import Snapshot
from b2array.errors import ConflictError, FormatError
from b2array.store.base import MISSING, Store, Version, attempts, pause, too_many_conflicts

__all__ = ["is_claimed", "release"]

_LOOKS = 30
"""How often to look whether a transaction happens, in two or three seconds."""


def is_claimed(held: Snapshot) -> bool:
    """Whether a transaction has claimed this state of a member, and has not taken that back."""
    claim = held.state.annotations.claim
    return claim is not None and bool(claim[0])


def release(held: Snapshot) -> None:
    """Make sure that no transaction which has claimed a state can still happen: carry it out, or make it begin again.

    ConflictError: it has happened, and has deleted the member.
    """
    path, _ = held.state.annotations.claim or ("", "")
    store_of = held.store.around(path) if path else None
    if store_of is None:  # somebody has copied the frame from a group
        return
    for _ in attempts(held.store):
        for looks in range(_LOOKS):
            time.sleep(pause(min(looks, 3)) if looks else 0)
            stored = _stored(store_of(""))
            if stored is None:
                return
            manifest, version = stored
            entry = manifest.redo.get(path)
            if entry is not None and look_by(entry, store_of, path)[1]:
                if entry.kind == "delete":
                    raise ConflictError(f"{held.url} was deleted since it was opened")
                carry_out(store_of, path, entry)
                return
            if look(held.store).state != held.unclaimed:
                return
        with suppress(ConflictError):
            anew = manifest.with_commit(os.urandom(8).hex())
            store_of("").replace(MANIFEST, anew.pack(), expected=version)
            return
    raise too_many_conflicts(held.store)


def _stored(group: Store) -> tuple[Manifest, Version | None] | None:
    """Return the manifest in a directory, and its version; None if there is none that a transaction could replace."""
    (head,) = group.head([MANIFEST], config.limits.metadata_nbytes)
    if isinstance(head, MISSING):
        return None
    if isinstance(head, Exception):
        raise head
    with suppress(FormatError):
        return Manifest.unpack(head.data), head.version
    return None
