"""Begins transactions of a group: `begin`, `changing`, `committing`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from b2array.group.fork import Changes
from b2array.group.listed import AnyGroup
from b2array.group.transaction import Transaction

__all__ = ["begin", "changing", "committing"]


def begin(
    home: AnyGroup,
    replacing: str | None = None,
    *,
    explicit: bool = True,
) -> Transaction:
    """Begin a transaction, after completing the commit of a writer that was killed.

    The transaction starts by deleting the members whose names begin with `replacing`. `GroupChange` describes
    `explicit`; an explicit transaction first lists the members again, in the handle `home` as well.
    """
    if explicit:  # other callers have just read the list of members
        home.refresh()
    home.recover()
    changes = Transaction(home, explicit=explicit)
    if replacing is not None:
        members = changes.members()
        changes.remove({name: path for name, path in members.items() if name.startswith(replacing)})
    return changes


def changing(home: AnyGroup | Changes) -> AbstractContextManager[Changes]:
    """Return a block that changes members: in the transaction under way, or in a new one, which it then commits."""
    return nullcontext(home) if isinstance(home, Changes) else committing(home)


@contextmanager
def committing(home: AnyGroup) -> Iterator[Transaction]:
    """Begin a transaction for the block, and commit it at the end; abort it if the block raises."""
    with _explaining_lengths(home):
        changes = begin(home, explicit=False)
        try:
            yield changes
        except BaseException:
            changes.abort()
            raise
        changes.commit()


@contextmanager
def _explaining_lengths(home: AnyGroup) -> Iterator[None]:
    """Say what is too long if the file system refuses the name of a file."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        _, _, name = str(error.filename).rpartition("/")
        raise OSError(
            error.errno,
            f"{home.url}: the name of a member is too long for this file system, because its file has a name of "
            f"{len(os.fsencode(name))} bytes while it is written; choose a shorter one, or divide it into groups",
            error.filename,
        ) from None
