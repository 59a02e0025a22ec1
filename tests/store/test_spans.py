"""Laws of merging spans and of finding their ends."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from b2array.codec.chunk import extents
from b2array.store.spans import Merged, Span, coalesce, plan_packed_read, plan_scatter_read

spans_of_two_objects = st.lists(
    st.builds(
        lambda name, start, length: Span(name, start, start + length),
        st.sampled_from(["", "0000000A.chunk"]),
        st.integers(0, 1000),
        st.integers(0, 100),
    ),
    max_size=40,
)


@given(spans_of_two_objects, st.integers(0, 50), st.integers(0, 300))
def test_every_wanted_span_is_a_member_once_and_lies_inside(spans, gap, limit):
    merged = coalesce(spans, gap, limit)
    assert sorted(member for each in merged for member in each.members) == list(range(len(spans)))
    for span, members in merged:
        for member in members:
            assert spans[member].name == span.name
            assert span.start <= spans[member].start <= spans[member].stop <= span.stop


@given(spans_of_two_objects, st.integers(0, 50), st.integers(0, 300))
def test_merged_spans_are_sorted_and_no_longer_than_the_limit_or_their_longest_member(spans, gap, limit):
    merged = coalesce(spans, gap, limit)
    assert [each.span for each in merged] == sorted(each.span for each in merged)
    for span, members in merged:
        longest = max(spans[member].stop - spans[member].start for member in members)
        assert span.stop - span.start <= max(limit, longest)


@given(spans_of_two_objects, st.integers(0, 50))
def test_only_gaps_up_to_the_allowed_one_are_read_and_wider_ones_never(spans, gap):
    for span, members in coalesce(spans, gap):
        reached = span.start
        for start, stop in sorted((spans[member].start, spans[member].stop) for member in members):
            assert start - reached <= gap
            reached = max(reached, stop)
        assert reached == span.stop


@given(spans_of_two_objects, st.integers(0, 50))
def test_what_is_not_merged_lies_further_apart_than_the_gap(spans, gap):
    merged = [each.span for each in coalesce(spans, gap)]
    for before, after in pairwise(merged):
        assert before.name != after.name or after.start - before.stop > gap


def test_adjacent_spans_merge_without_any_gap():
    assert coalesce([Span("", 10, 20), Span("", 0, 10)], gap=0) == [Merged(Span("", 0, 20), (1, 0))]


def test_spans_of_different_objects_never_merge():
    assert len(coalesce([Span("a", 0, 10), Span("b", 10, 20)], gap=100)) == 2


def test_a_span_inside_a_longer_one_joins_it_even_above_the_limit():
    assert coalesce([Span("", 0, 100), Span("", 10, 20)], gap=0, limit=50) == [Merged(Span("", 0, 100), (0, 1))]


def test_nothing_wanted_is_nothing_read():
    assert coalesce([], gap=10) == []


@given(st.lists(st.integers(0, 60), max_size=30), st.integers(0, 60))
def test_an_extent_is_the_next_larger_start_below_the_end(starts, end):
    expected = [min([other for other in starts if start < other < end], default=end) for start in starts]
    found = extents(np.array(starts, np.int64), end)
    assert found.dtype == np.int64
    assert found.tolist() == expected


parts_of_an_object = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 100)).map(lambda part: (part[0], sum(part))), min_size=1, max_size=40
)


@given(parts_of_an_object, st.integers(0, 50), st.integers(0, 60))
def test_parts_that_are_closed_up_are_found_again_in_what_is_read(parts, gap, lead):
    content = bytes(n % 251 for n in range(1200))
    found = plan_packed_read([start for start, _ in parts], [stop for _, stop in parts], gap=gap, lead=lead)
    read = b"".join(content[start:stop] for start, stop in found.ranges)
    assert len(read) == found.nbytes
    for position, (start, stop) in zip(found.positions, parts, strict=True):
        assert read[position : position + stop - start] == content[start:stop]


@given(parts_of_an_object, st.integers(0, 50), st.integers(0, 60))
def test_ranges_of_parts_that_are_closed_up_have_gaps_between_them_and_no_wider_ones_inside(parts, gap, lead):
    ranges, *_ = plan_packed_read([start for start, _ in parts], [stop for _, stop in parts], gap=gap, lead=lead)
    first = min(start for start, _ in parts)
    assert ranges[0][0] == max(0, first - lead)
    assert all(after[0] - before[1] > gap for before, after in pairwise(ranges))
    for start, stop in [(first, ranges[0][1]), *ranges[1:]]:
        reached = start
        for begin, end in sorted(part for part in parts if start <= part[0] <= stop):
            assert begin - reached <= gap
            reached = max(reached, end)
        assert reached == stop


@given(parts_of_an_object, st.integers(0, 50), st.integers(0, 60), st.integers(0, 30))
def test_parts_that_are_set_apart_are_found_again_with_room_around_them(parts, gap, lead, room):
    content = bytes(n % 251 for n in range(1200))
    found = plan_scatter_read([start for start, _ in parts], [stop for _, stop in parts], gap=gap, lead=lead, room=room)
    buffer = bytearray(found.nbytes)
    reached = lead
    for (start, stop), place in zip(found.ranges, found.places, strict=True):
        assert place == reached
        buffer[place : place + stop - start] = content[start:stop]
        reached = place + stop - start + room
    assert reached == found.nbytes == len(buffer)
    assert sorted(found.positions) == found.places
    for position, (start, stop) in zip(found.positions, parts, strict=True):
        assert buffer[position : position + stop - start] == content[start:stop]


@given(parts_of_an_object, st.integers(0, 50))
def test_with_parts_that_are_set_apart_no_more_is_read_than_the_gap_allows(parts, gap):
    ranges = plan_scatter_read([start for start, _ in parts], [stop for _, stop in parts], gap=gap).ranges
    assert ranges == sorted(ranges)
    for (start, stop), wanted in zip(ranges, sorted(parts), strict=True):
        assert (start, stop) == wanted or wanted[1] < stop <= wanted[1] + gap
