"""Begins the transaction of a group, wherever it is: `begin`, `changing`, `committing`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

from b2array.group.fork import Changes
from b2array.group.listed import AnyGroup, ListedGroup
from b2array.group.rows import RowTransaction
from b2array.group.transaction import Transaction

__all__ = ["AnyTransaction", "begin", "changing", "committing"]

AnyTransaction: TypeAlias = Transaction | RowTransaction


def begin(home: AnyGroup, replacing: str | None = None, *, marked: bool = True) -> AnyTransaction:
    """Begin a transaction. The classes say what the arguments mean."""
    if isinstance(home, ListedGroup):
        return RowTransaction(home, replacing, marked=marked)
    return Transaction(home, replacing, marked=marked)


def changing(home: AnyGroup | Changes) -> AbstractContextManager[Changes]:
    """Return a block that changes members: in the transaction under way, or in a new one, which it then commits."""
    return nullcontext(home) if isinstance(home, Changes) else committing(home)


@contextmanager
def committing(home: AnyGroup) -> Iterator[AnyTransaction]:
    """Run the block in a new transaction, and commit it."""
    changes = begin(home, marked=False)
    try:
        yield changes
    except BaseException:
        changes.abort()
        raise
    changes.commit()
