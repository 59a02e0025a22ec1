"""Ranges of bytes, and plans to read close ranges together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Merged", "PackedRead", "ScatterRead", "Span", "coalesce", "plan_packed_read", "plan_scatter_read"]


class Span(NamedTuple):
    """The bytes ``[start, stop)`` of the object `name`, which is ``""`` in a store of one object."""

    name: str
    start: int
    stop: int


class Merged(NamedTuple):
    """A span to read in one request, and the indices of the wanted spans inside it."""

    span: Span
    members: tuple[int, ...]


class PackedRead(NamedTuple):
    """Ranges to read one after another into a buffer of `nbytes` bytes, and the position of each part in the buffer."""

    ranges: list[tuple[int, int]]
    positions: list[int]
    nbytes: int


class ScatterRead(NamedTuple):
    """Ranges to read, the place of each in a buffer of `nbytes` bytes, and the position of each part in the buffer."""

    ranges: list[tuple[int, int]]
    places: list[int]
    positions: list[int]
    nbytes: int


def coalesce(spans: Sequence[Span], gap: int, limit: int = 64 * 2**20) -> list[Merged]:
    """Merge spans that are close together in one object, so that fewer requests read them.

    `spans` may be in any order, repeat and overlap. Spans are merged if at most `gap` unwanted bytes are between them,
    and the merged span has at most `limit` bytes. No wanted span is cut: a span longer than `limit` is merged only with
    spans inside it. The result is sorted by object and start, and each wanted span is a member of exactly one item.

    Examples
    --------
    >>> coalesce([Span("", 100, 200), Span("", 0, 90), Span("", 500, 600)], gap=10)
    [Merged(span=Span(name='', start=0, stop=200), members=(1, 0)),
     Merged(span=Span(name='', start=500, stop=600), members=(2,))]
    """
    if not spans:
        return []
    first, *others = sorted(range(len(spans)), key=spans.__getitem__)
    merged = []
    name, start, stop = spans[first]
    members = [first]
    for position in others:
        wanted = spans[position]
        end = max(stop, wanted.stop)
        if wanted.name == name and (end == stop or (wanted.start - stop <= gap and end - start <= limit)):
            stop = end
            members.append(position)
        else:
            merged.append(Merged(Span(name, start, stop), tuple(members)))
            name, start, stop = wanted
            members = [position]
    merged.append(Merged(Span(name, start, stop), tuple(members)))
    return merged


def plan_packed_read(
    starts: Sequence[int],
    stops: Sequence[int],
    *,
    gap: int,
    lead: int = 0,
) -> PackedRead:
    """Plan to read parts of one object with few reads, one after another into a buffer.

    The parts, from `starts` to `stops`, may be in any order and overlap. Parts are read together if at most `gap`
    unwanted bytes are between them. `lead` bytes are read before the first part, fewer at the beginning of the object.

    Examples
    --------
    >>> plan_packed_read([500, 100, 205], [600, 200, 300], gap=10, lead=20)
    PackedRead(ranges=[(80, 300), (500, 600)], positions=[220, 20, 125], nbytes=320)
    """
    # There are usually few parts, and then a loop is faster than NumPy.
    parts = sorted(zip(starts, stops, range(len(starts)), strict=True))
    ranges = []
    positions = [0] * len(parts)
    reached = parts[0][0]
    begin = max(0, reached - lead)
    shift = -begin
    for start, stop, number in parts:
        if start > reached + gap:
            ranges.append((begin, reached))
            shift += reached - start
            begin = reached = start
        positions[number] = start + shift
        reached = max(reached, stop)
    ranges.append((begin, reached))
    return PackedRead(ranges, positions, reached + shift)


def plan_scatter_read(
    starts: Sequence[int],
    stops: Sequence[int],
    *,
    gap: int,
    lead: int = 0,
    room: int = 0,
) -> ScatterRead:
    """Plan to read parts of one object into a buffer: one range per part, in increasing order, with its place.

    The parts, from `starts` to `stops`, may be in any order. The bytes between a part and the next one are read as well
    if there are at most `gap` of them. `lead` bytes stay free before the first part, and `room` bytes after each part.

    Examples
    --------
    >>> plan_scatter_read([500, 100, 205], [600, 200, 300], gap=10, lead=20, room=5)
    ScatterRead(ranges=[(100, 205), (205, 300), (500, 600)], places=[20, 130, 230], positions=[230, 20, 130],
                nbytes=335)
    """
    parts = sorted(zip(starts, stops, range(len(starts)), strict=True))
    ranges, places = [], []
    positions = [0] * len(parts)
    at = lead
    following = iter([*parts[1:], parts[-1]])
    for start, stop, number in parts:
        next_start = next(following)[0]
        end = next_start if stop < next_start <= stop + gap else stop
        ranges.append((start, end))
        places.append(at)
        positions[number] = at
        at += end - start + room
    return ScatterRead(ranges, places, positions, at)
