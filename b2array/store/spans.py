"""Ranges of bytes: where parts of an object end, and which ranges are worth reading together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ClosedUp", "Merged", "SetApart", "Span", "close_up", "coalesce", "set_apart"]


class Span(NamedTuple):
    """The bytes ``[start, stop)`` of the object `name`; a store that is one object names it ``""``."""

    name: str
    start: int
    stop: int


class Merged(NamedTuple):
    """A span to read at once, and the positions of the wanted spans that lie inside it."""

    span: Span
    members: tuple[int, ...]


class ClosedUp(NamedTuple):
    """Ranges to read, and where each part begins when they stand one behind the other (`nbytes` bytes)."""

    ranges: list[tuple[int, int]]
    positions: list[int]
    nbytes: int


class SetApart(NamedTuple):
    """Ranges to read, the place of each in a buffer of `nbytes` bytes, and where each part begins there."""

    ranges: list[tuple[int, int]]
    places: list[int]
    positions: list[int]
    nbytes: int


def coalesce(spans: Sequence[Span], gap: int, limit: int = 64 * 2**20) -> list[Merged]:
    """Merge spans that are near each other in one object, so that fewer requests read them all.

    Parameters
    ----------
    spans : sequence of Span
        The wanted spans, in any order. They may repeat and overlap.
    gap : int
        Bytes that may lie unwanted between two spans that are merged. Adjacent spans have a gap of 0.
    limit : int
        Bytes that a merged span may have. A wanted span is never cut: one longer than `limit` stands alone, or
        together with spans inside it.

    Returns
    -------
    list of Merged
        Sorted by object and start. Each wanted span is a member of exactly one of them.

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


def close_up(starts: Sequence[int], stops: Sequence[int], *, gap: int, lead: int = 0) -> ClosedUp:
    """Merge parts of one object that are near each other, and find them again in what is read.

    Parameters
    ----------
    starts, stops : sequence of int
        Where each part begins and ends, in bytes, in any order; they may overlap.
    gap : int
        Bytes that may lie unwanted between two parts that are read together.
    lead : int
        Bytes to read in front of the first part, or as many as the object has there.

    Returns
    -------
    ClosedUp
        Ranges in increasing order, and a position a part, in the order of the parts.

    Examples
    --------
    >>> close_up([500, 100, 205], [600, 200, 300], gap=10, lead=20)
    ClosedUp(ranges=[(80, 300), (500, 600)], positions=[220, 20, 125], nbytes=320)
    """
    # Few parts are the rule, and of few a loop makes less ado than NumPy.
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
    return ClosedUp(ranges, positions, reached + shift)


def set_apart(starts: Sequence[int], stops: Sequence[int], *, gap: int, lead: int = 0, room: int = 0) -> SetApart:
    """Find a place for each part of an object in a buffer where all of them have room around them.

    Parameters
    ----------
    starts, stops : sequence of int
        Where each part begins and ends, in bytes, in any order.
    gap : int
        Bytes that may be read with a part because they lie between it and the next.
    lead : int
        Bytes that stay free in front of the first part.
    room : int
        Bytes that stay free behind every part.

    Returns
    -------
    SetApart
        A range a part, in increasing order, with its place, and a position a part, in the order of the parts.

    Examples
    --------
    >>> set_apart([500, 100, 205], [600, 200, 300], gap=10, lead=20, room=5)
    SetApart(ranges=[(100, 205), (205, 300), (500, 600)], places=[20, 130, 230], positions=[230, 20, 130], nbytes=335)
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
    return SetApart(ranges, places, positions, at)
