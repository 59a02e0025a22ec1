"""Reads of stores on servers through the cache on disk.

The key of a content has the object's place, without secrets, and the content's name. The beginning and the end of an
object, which readers need to open it, have the place and the range as their key. They are kept with the object's
version. A reader asks for one byte of the object, because each answer has the present version: every client and server
can do that, and not every one makes conditional requests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple

from b2array import config
from b2array.buffers import Buffer
from b2array.store.base import ContentName, Stamp, Version
from b2array.store.disk_cache import KEY_NBYTES, CachedPart, DiskCache, give_up
from b2array.store.spans import Span, coalesce

__all__ = ["CachedCopy", "find", "forget", "has_copy", "lacking", "read", "read_present"]

_GAP = 128 * 2**10
"""A request costs more than so many bytes, if they are read only once."""
_WIDEST_GAP = 512 * 2**10
"""Two requests at once never cost more than so many bytes that nobody wants yet."""
_MOST_MERGED = 16 * 2**20
"""Spans of more bytes together are requested apart, as `read` of the stores does."""
_COPY = struct.Struct("<qH")
"""The size of the object, and the length of the version's tag, which follows."""

Range = tuple[int, int]
"""The first byte of a range, and the first byte after it."""
Names = Sequence[ContentName | None]
Split = Callable[[Span], Iterable[tuple[Span, ContentName | None]]]
"""Cuts a range of an object where one content ends and the next one begins, and names the contents."""


class CachedCopy(NamedTuple):
    """A range of an object, and the state to which it belongs."""

    data: memoryview
    stamp: Stamp

    @property
    def version(self) -> Version:
        """The version of the object; a copy always has one."""
        return self.stamp.version or Version("")


class _Slice(NamedTuple):
    """The wanted range of one span, in its content; without a content, in its object.

    Attributes
    ----------
    span : Span
        The span.
    key : bytes or None
        The key of the content.
    base : int
        The offset of the content in the object.
    """

    span: Span
    key: bytes | None
    base: int

    @property
    def range(self) -> Range:
        """The wanted bytes, counted from the base."""
        return self.span.start - self.base, self.span.stop - self.base

    def in_object(self, part: Range) -> Span:
        """Return a part of the content as a span of the object."""
        start, stop = part
        return Span(self.span.name, self.base + start, self.base + stop)


@lru_cache(maxsize=4096)
def _key(place: str, name: str, *parts: object) -> bytes:
    text = repr((place, name, *parts))
    return blake2b(text.encode(), digest_size=KEY_NBYTES).digest()


def _wanted(place: str, spans: Sequence[Span], names: Names) -> list[_Slice]:
    wanted = []
    for span, name in zip(spans, names, strict=True):
        # The store refuses a span that is not a range.
        if name is not None and name.base <= span.start < span.stop:
            key = _key(place, span.name, name.name)
            wanted.append(_Slice(span, key, name.base))
        else:
            wanted.append(_Slice(span, None, 0))
    return wanted


def _by_key(wanted: Sequence[_Slice]) -> dict[bytes, list[int]]:
    """Return the numbers of the spans that belong to each content."""
    numbers: dict[bytes, list[int]] = {}
    for n, each in enumerate(wanted):
        if each.key is not None:
            numbers.setdefault(each.key, []).append(n)
    return numbers


def read(
    cache: DiskCache,
    place: str,
    spans: Sequence[Span],
    names: Names,
    fetch: Callable[[list[Span]], tuple[list[memoryview], bool]],
    *,
    clip: bool,
    split: Split | None = None,
) -> list[memoryview]:
    """Read spans of objects, from the cache if it has them; `fetch` reads the others, and the cache keeps them.

    `fetch` also returns whether the bytes are certain to be of the state that gives them their names; otherwise the
    cache does not keep them. With `clip`, `fetch` may return a shorter view of a span that reaches beyond the end of
    its object. `split` names the bytes between spans, which requests may bring as well.
    """
    wanted = _wanted(place, spans, names)
    parts = _find(cache, wanted, clip=clip)
    if all(part.missing is None for part in parts):
        return [_join(part, None) for part in parts]
    gaps = _gaps(wanted, [part.missing for part in parts])
    requests = _plan_requests(wanted, gaps)
    views, is_sure = fetch([request.span for request in requests])
    answers: dict[int, memoryview] = {}
    for request, view in zip(requests, views, strict=True):
        for n in request.numbers:
            answers[n] = request.part_of(view, gaps[n])
    if is_sure:
        with _giving_up(cache):
            for request, view in zip(requests, views, strict=True):
                came = [_Slice(gaps[n], wanted[n].key, wanted[n].base) for n in request.numbers]
                if split is not None:
                    came += _wanted(place, *_name_between(request.span, came, split))
                _keep(cache, request, view, came)
    return [_join(part, answers.get(n)) for n, part in enumerate(parts)]


def find(
    cache: DiskCache,
    place: str,
    spans: Sequence[Span],
    names: Names,
) -> list[memoryview] | None:
    """Return the bytes of spans if the cache has all of them; otherwise None."""
    views = []
    for span, name in zip(spans, names, strict=True):
        if name is None or not name.base <= span.start < span.stop:
            return None
        key = _key(place, span.name, name.name)
        view = cache.find_whole(key, span.start - name.base, span.stop - name.base)
        if view is None:
            return None
        views.append(view)
    for view in views:
        cache.count(found=len(view), missed=0)
    return views


def _find(
    cache: DiskCache,
    wanted: Sequence[_Slice],
    *,
    clip: bool,
) -> list[CachedPart]:
    """Look for spans in the cache, and count what was there."""
    parts = [CachedPart([], each.range) for each in wanted]
    for key, numbers in _by_key(wanted).items():
        ranges = [wanted[n].range for n in numbers]
        for n, part in zip(numbers, cache.find(key, ranges), strict=True):
            # Without `clip`, the server says that the object is too short.
            if part.stop is None or clip:
                parts[n] = part
            gap = parts[n].missing
            missed = 0 if gap is None else gap[1] - gap[0]
            nbytes = sum(len(view) for _, view in parts[n].views)
            cache.count(found=nbytes, missed=missed)
    return parts


class _Request(NamedTuple):
    """A range to request, and the numbers of the spans of which it has the missing parts."""

    span: Span
    numbers: list[int]

    def part_of(self, view: memoryview, part: Span) -> memoryview:
        """Return a part of the answer."""
        start = part.start - self.span.start
        stop = part.stop - self.span.start
        return view[start:stop]


def _gaps(wanted: Sequence[_Slice], missing: Sequence[Range | None]) -> dict[int, Span]:
    """Return the missing parts of spans, by the number of the span."""
    gaps = {}
    for n, part in enumerate(missing):
        if part is not None:
            gaps[n] = wanted[n].in_object(part)
    return gaps


def _plan_requests(wanted: Sequence[_Slice], gaps: Mapping[int, Span]) -> list[_Request]:
    """Return the ranges to request for the missing parts of spans.

    Larger gaps between parts are read over than without the cache: it keeps their bytes for later reads.
    """
    numbers = [*gaps]
    parts = [*gaps.values()]
    gap = max(config.coalesce_gap, _GAP)
    merged = coalesce(parts, gap, _MOST_MERGED)
    requests = []
    for span, members in merged:
        request = _Request(span, [numbers[m] for m in members])
        requests.append(request)
    return _join_in_contents(wanted, requests)


def _join_in_contents(wanted: Sequence[_Slice], requests: list[_Request]) -> list[_Request]:
    """Join requests for parts of one content, the closest first, as long as at most half of the bytes is not wanted.

    A reader of some blocks of a chunk, and of its checksums at the end, gets them with one request for most of the
    chunk. The next reader may want other blocks of it.
    """
    room = _nbytes([request.span for request in requests])
    between = []
    for n, (left, right) in enumerate(pairwise(requests)):
        last, first = wanted[left.numbers[-1]], wanted[right.numbers[0]]
        if last.key is not None and last.key == first.key:
            between.append((right.span.start - left.span.stop, n))
    joined = set()
    for nbytes, n in sorted(between):
        room -= nbytes
        if room < 0 or nbytes > _WIDEST_GAP:
            break
        joined.add(n)
    if not joined:
        return requests
    result = [requests[0]]
    for n, request in enumerate(requests[1:]):
        before = result[-1]
        if n in joined and request.span.stop - before.span.start <= _MOST_MERGED:
            whole = _hull([before.span, request.span])
            result[-1] = _Request(whole, before.numbers + request.numbers)
        else:
            result.append(request)
    return result


def _hull(spans: Sequence[Span]) -> Span:
    """Return the shortest span that contains spans of one object."""
    start = min(span.start for span in spans)
    stop = max(span.stop for span in spans)
    return Span(spans[0].name, start, stop)


def _name_between(whole: Span, parts: Sequence[_Slice], split: Split) -> tuple[list[Span], list[ContentName | None]]:
    """Return the bytes of a range that are in none of its parts, and the names of the contents that they belong to."""
    spans: list[Span] = []
    names: list[ContentName | None] = []
    reached = whole.start
    for part in sorted(part.span for part in parts):
        if part.start > reached:
            between = Span(whole.name, reached, part.start)
            for span, name in split(between):
                spans.append(span)
                names.append(name)
        reached = max(reached, part.stop)
    return spans, names


def _keep(
    cache: DiskCache,
    request: _Request,
    view: memoryview,
    came: Sequence[_Slice],
) -> None:
    """Keep the answer of a request, which has parts of contents."""
    for key, numbers in _by_key(came).items():
        base = came[numbers[0]].base
        whole = _hull([came[n].span for n in numbers])
        part = request.part_of(view, whole)
        start = whole.start - base
        # Only a content that begins with its object ends with it.
        is_cut = len(part) < whole.stop - whole.start and not base
        stop = start + len(part) if is_cut else None
        cache.add(key, [(start, part)], stop=stop)


def _join(part: CachedPart, answer: memoryview | None) -> memoryview:
    """Return the bytes of a range: what was found, with the answer for what was missing."""
    pieces = list(part.views)
    if answer is not None and part.missing is not None:
        pieces.append((part.missing[0], answer))
        pieces.sort(key=_place_of)
    if len(pieces) == 1:
        return pieces[0][1]
    views = [view for _, view in pieces]
    return memoryview(bytearray().join(views))


def _place_of(piece: tuple[int, memoryview]) -> int:
    return piece[0]


@contextmanager
def _giving_up(cache: DiskCache) -> Iterator[None]:
    """Go on without the cache if it cannot be written: the read itself has succeeded."""
    try:
        yield
    except OSError as error:
        give_up(cache, error)


def lacking(
    cache: DiskCache,
    place: str,
    spans: Sequence[Span],
    names: Names,
) -> tuple[list[Span], int]:
    """Return the ranges that `read` would request for spans, and the number of bytes of the spans in the cache."""
    wanted = _wanted(place, spans, names)
    missing: list[Range | None] = [each.range for each in wanted]
    for key, numbers in _by_key(wanted).items():
        ranges = [wanted[n].range for n in numbers]
        for n, part in zip(numbers, cache.missing(key, ranges), strict=True):
            missing[n] = part
    gaps = _gaps(wanted, missing)
    requests = [request.span for request in _plan_requests(wanted, gaps)]
    return requests, _nbytes(spans) - _nbytes([*gaps.values()])


def _nbytes(spans: Sequence[Span]) -> int:
    return sum(stop - start for _, start, stop in spans)


def forget(
    cache: DiskCache,
    place: str,
    spans: Sequence[Span],
    names: Names,
) -> bool:
    """Remove the contents to which spans belong; return whether any of them was there."""
    was_there = False
    for key in _by_key(_wanted(place, spans, names)):
        was_there |= cache.forget(key)
    return was_there


# The beginning and the end of an object.

Fetch = Callable[[Sequence[Span]], list[Any]]
"""Reads ranges at once; returns bytes and state of the object, or an error, for each."""


def read_present(
    cache: DiskCache,
    place: str,
    spans: Sequence[Span],
    fetch: Fetch,
    may_keep: Callable[[Version], bool],
    accepts: Callable[[Version], bool] | None,
) -> list[Any]:
    """Read spans of objects in their present states.

    Of objects of which the cache has copies, `fetch` reads one byte, and with it the version. If that is the version of
    a copy, the copy is the answer.

    Parameters
    ----------
    spans : sequence of Span
        The ranges. A start of -n means the last n bytes.
    fetch : callable
        Reads ranges.
    may_keep : callable
        Whether a version is certain to differ between two states of an object.
    accepts : callable, optional
        Whether a copy of a version is the answer without such a check.

    Returns
    -------
    list
        The answers of `fetch`, and copies in the same form.
    """
    copies = [_copy_of(cache, place, span) for span in spans]
    if accepts is None:
        answers = _confirm(spans, copies, fetch)
    else:
        answers = [copy if copy is not None and accepts(copy.version) else None for copy in copies]
    left = [n for n, answer in enumerate(answers) if answer is None]
    fetched = fetch([spans[n] for n in left])
    for n, answer in zip(left, fetched, strict=True):
        answers[n] = answer
    for span, copy, answer in zip(spans, copies, answers, strict=True):
        if isinstance(answer, Exception):
            continue
        content, stamp = answer
        if answer is copy:
            cache.count(found=len(content), missed=0)
            continue
        cache.count(found=0, missed=len(content))
        version = _version_in(answer)
        if version is not None and may_keep(version):
            _keep_copy(cache, place, span, content, stamp.size, version)
    return answers


def _confirm(
    spans: Sequence[Span],
    copies: Sequence[CachedCopy | None],
    fetch: Fetch,
) -> list[Any]:
    """Return the copies that are of the present states of their objects, and errors, usually of missing objects.

    The answer for a span is None if it has to be read.
    """
    unread: list[Any] = [None] * len(spans)
    if not any(copies):
        return unread
    names = list(dict.fromkeys(span.name for span in spans))
    first = copies[0]
    # Readers also ask for other names that the object may have. They take the first one that exists and is not empty.
    if first is not None and len(first.data):
        names = names[:1]
    start = max(0, spans[0].start)
    asked = [Span(name, start, start + 1) for name in names]
    present = dict(zip(names, fetch(asked), strict=True))
    if first is not None and first.version != _version_in(present[names[0]]):
        return unread
    answers: list[Any] = []
    for span, copy in zip(spans, copies, strict=True):
        answer = present.get(span.name, FileNotFoundError())
        if copy is not None and copy.version == _version_in(answer):
            answers.append(copy)
        elif copy is None and isinstance(answer, Exception):
            answers.append(answer)
        else:
            answers.append(None)
    return answers


def _version_in(answer: Any) -> Version | None:
    """Return the version in an answer of `fetch`."""
    if isinstance(answer, Exception):
        return None
    stamp: Stamp | None = answer[1]
    return None if stamp is None else stamp.version


def _copy_of(cache: DiskCache, place: str, span: Span) -> CachedCopy | None:
    data = cache.last(_copy_key(place, span))
    if data is None or len(data) < _COPY.size:
        return None
    size, length = _COPY.unpack_from(data)
    first = _COPY.size + length
    tag = bytes(data[_COPY.size : first]).decode()
    return CachedCopy(data[first:], Stamp(size, Version(tag)))


def has_copy(cache: DiskCache, place: str, span: Span) -> bool:
    """Return whether the cache has a copy of a range of an object, in any state."""
    return _copy_of(cache, place, span) is not None


def _keep_copy(
    cache: DiskCache,
    place: str,
    span: Span,
    data: Buffer,
    size: int,
    version: Version,
) -> None:
    """Keep a range of an object, and the object's state, in place of an earlier copy."""
    tag = version.tag.encode()
    head = _COPY.pack(size, len(tag))
    packed = b"".join([head, tag, data])
    with _giving_up(cache):
        cache.add(_copy_key(place, span), [(0, packed)], replaces=True)


def _copy_key(place: str, span: Span) -> bytes:
    # The name of a content is of bytes, and not a range.
    return _key(place, span.name, span.start, span.stop)
