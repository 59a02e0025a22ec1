"""`write_once`: writes a whole object, and finds out whether that has happened.

No error of a server answers that question. If an answer is lost, the client repeats the request, and the repeated
request is refused because the first one has succeeded. S3 also refuses a request while another one is under way, and
then nothing is there. So after each failure, a writer reads the object and compares it with what it has written. An
object that can be read is in one of three states (`Found`). If it cannot be read, the outcome is unknown: that is an
error, because a writer that repeats its changes may apply them twice.

An earlier attempt never becomes visible after a later one: its request requires a version of the object that is gone.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Generic, TypeVar

from b2array.buffers import Buffer
from b2array.catalog.owners import load_published
from b2array.errors import B2ArrayError, ConflictError, FormatError, LimitError, UnsupportedError
from b2array.format.state import State
from b2array.frame.revision import Revision
from b2array.store.base import MISSING, HiddenError, Stamp, Store, Version, as_pieces, conflict, durability, where
from b2array.store.spans import Span

__all__ = ["Found", "Look", "create_unique", "look_at_frame", "write_once"]

T = TypeVar("T")

_REFUSALS = (ConflictError, FileExistsError)
_END_NBYTES = 2**12
"""How many of the last bytes identify an object: every frame and every sealed object ends with a digest."""


class Found(Enum):
    """What is in the place of an object, compared with what was written there."""

    OURS = auto()
    """The object that was written, or a later state on top of it."""
    AS_BEFORE = auto()
    """The object that was to be replaced; nothing, if it was to be created."""
    OTHER = auto()
    """The object of another writer."""


@dataclass(frozen=True, slots=True)
class Look(Generic[T]):
    """What is in the place of an object, compared with what was written there.

    `version` is the version of that object, and `content` what a look has read; it is None if no look was necessary,
    because the write has succeeded at once.
    """

    found: Found
    version: Version | None = None
    content: T | None = None


def write_once(
    store: Store,
    write: Callable[[], Stamp],
    look: Callable[[], Look[T]],
    *,
    forces: bool = False,
    keep: Callable[[], object] = lambda: None,
) -> Look[T]:
    """Write an object, find out whether that has happened, and return what is in its place: always `Found.OURS`.

    Parameters
    ----------
    store : Store
        The store of the object.
    write : callable
        Creates or replaces the object. In stores that compare versions, its request has a condition.
    look : callable
        Reads the object after a failure.
    forces : bool
        Whether the write is done only when the object is on the disk.
    keep : callable
        Called before an error if the object may refer, now or later, to what its writer has prepared. The writer must
        then keep that.

    Raises
    ------
    ConflictError, FileExistsError
        Another writer was faster: nothing was written, and nothing will be.
    OSError, FormatError, LimitError, UnsupportedError
        The write was refused, but the object cannot be read, so that nobody knows who has written it.
    Exception
        Any other error of the write. Unless `keep` was called, nothing was written.
    """
    try:
        version = write().version
        if forces:
            store.force()
    except BaseException as error:
        # No client repeats requests to a store with locks, and the lock excludes other writers.
        if store.can.lock and isinstance(error, _REFUSALS):
            raise
        seen = _look_after_error(store, error, look, keep)
        if seen is not None and _is_done(store, error, seen, keep):
            return seen
        raise
    return Look(Found.OURS, version)


def _look_after_error(
    store: Store,
    error: BaseException,
    look: Callable[[], Look[T]],
    keep: Callable[[], object],
) -> Look[T] | None:
    """After an `error` of the write, read what is in the object's place; return None if that error must be raised.

    If the write was refused and the read fails as well, this raises the error of the read, because nobody knows who
    wrote first: as an `OSError` if the cause may pass. It calls `keep` whenever the outcome stays unknown.
    """
    if not isinstance(error, Exception) and not store.can.local:
        # Another request would make the user wait after Ctrl-C.
        keep()
        return None
    try:
        return look()
    except (OSError, B2ArrayError) as failure:
        keep()
        if not isinstance(error, _REFUSALS):
            return None
        if isinstance(failure, FormatError | LimitError | UnsupportedError):
            # What is there cannot be read by anybody.
            raise
        raise _make_unknown_error(store, failure) from failure
    except BaseException:
        keep()
        raise


def _is_done(
    store: Store,
    error: BaseException,
    look: Look[T],
    keep: Callable[[], object],
) -> bool:
    """Compare the `error` of a write with a `look` at the object: whether the write is done and the error is harmless.

    If the write is done, or may be done later, but the error must be raised, this calls `keep`. ConflictError: another
    writer was faster, and the write will never be done.
    """
    if look.found is Found.OURS:
        # Ctrl-C must reach the user, and so must an error of a disk that does not keep what was promised.
        if isinstance(error, Exception) and not (durability() == "full" and store.can.local):
            return True
        keep()
        return False
    if isinstance(error, _REFUSALS):
        return False
    if look.found is Found.OTHER and store.can.compare and isinstance(error, Exception):
        # The version that the request requires is gone, so the request can no longer succeed.
        raise conflict(store.url) from error
    if not store.can.lock:
        # The request may still be under way.
        keep()
    return False


def _make_unknown_error(store: Store, error: Exception) -> OSError:
    """Return the error for a writer that cannot find out whether it or another writer has written an object.

    `error` is the reason why the object cannot be read.
    """
    return OSError(
        errno.EIO,
        f"{store.url}: the server refused a write, perhaps because the first request for it had succeeded, and now the"
        f" object cannot be read ({error}): look at the data before you write them again",
    )


# What a look finds.


def look_at_frame(
    store: Store,
    state: State,
    replaced: Version | None,
    *,
    sparse: bool,
) -> Look[Revision]:
    """Read a frame, and compare it with a `state` that was written, and with the version that it was to replace.

    A state that other writers have committed on top of `state` counts as ours. If `replaced` is None, the frame was to
    be created. Raises the errors of `load_published`; but a missing frame is not an error, and neither are other bytes
    where a frame was to be created.
    """
    try:
        published = load_published(store, sparse=sparse)
    except HiddenError:
        raise
    except MISSING:
        return Look(Found.AS_BEFORE if replaced is None else Found.OTHER)
    except (FormatError, UnsupportedError):
        if replaced is not None:
            raise
        return Look(Found.OTHER)
    verdict = Found.OTHER
    is_ours = published.generation == state.frame.fingerprint.hex()
    if is_ours or published.state.annotations.lists(state.annotations):
        verdict = Found.OURS
    elif replaced is not None and published.version == replaced:
        verdict = Found.AS_BEFORE
    return Look(verdict, published.version, published)


# Objects with names that nobody else uses.


class _Sent:
    """An iterable over the pieces of an object on their way to the store: it notes their size, and the last bytes."""

    def __init__(self, data: Buffer | Iterable[Buffer]) -> None:
        self.size = 0
        self.end = b""
        self._pieces = iter(as_pieces(data))

    def __iter__(self) -> Iterator[Buffer]:
        for piece in self._pieces:
            view = memoryview(piece).cast("B")
            self.size += len(view)
            self.end = (self.end + view[-_END_NBYTES:])[-_END_NBYTES:]
            yield piece

    def look(self, store: Store, name: str) -> Look[None]:
        """Read the size and the end of the object, and compare them with what was sent. This consumes all pieces."""
        # A store that finds an object in the way does not ask for all pieces.
        for _ in self:
            pass
        try:
            size, version = store.stamp(name)
        except HiddenError:
            raise
        except MISSING:
            return Look(Found.AS_BEFORE)
        start = self.size - len(self.end)
        (end,) = store.read([Span(name, start, self.size)], clip=True)
        is_ours = size in (self.size, -1) and end == self.end
        return Look(Found.OURS if is_ours else Found.OTHER, version)


def create_unique(store: Store, name: str, data: Buffer | Iterable[Buffer]) -> Version | None:
    """Create an object whose name no other writer uses, and return its version.

    The caller has drawn the name at random, or it contains the generation of a state. If the object is there already
    with the same bytes, because an answer was lost, this succeeds. OSError: the store refuses the object, although it
    is not there.
    """
    sent = _Sent(data)
    # A store keeps bytes as they are, and copies pieces.
    create = partial(store.create, name, data if isinstance(data, bytes) else sent)
    try:
        if store.can.local:
            # No answer is lost on this computer.
            return create().version
        return write_once(store, create, partial(sent.look, store, name)).version
    except (ConflictError, FileExistsError) as error:
        # Whoever holds a lock, no other writer uses this name.
        seen = sent.look(store, name)
        if seen.found is Found.OURS:
            return seen.version
        text = "the store refused to create an object with a new name, and nothing was written; try again"
        raise OSError(errno.EBUSY, text, where(store.url, name)) from error
