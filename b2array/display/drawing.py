"""SVG drawings of arrays that are cut along a grid.

An array of one dimension is a strip, of two a rectangle, of three a box seen from the front, above and the right. More
dimensions are several drawings side by side. Lines and text have the colour of the surrounding text, so that they are
visible on light and dark backgrounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from b2array.printable import html_text

__all__ = ["Box", "draw", "merge"]

Side = tuple[int, int]
"""First and last (exclusive) item along a dimension."""
Box = tuple[Side, ...]
Point = tuple[float, float]

_SIZE = 150.0
_THIN = 0.1
"""The minimum length of a side, as a fraction of the longest side."""
_STRIP = 24.0
_DEEP = (0.42, 0.32)
"""The horizontal and vertical extent of the axis away from the viewer."""
_LINES = 40
_SOLIDS = 400
_FACES = ("#f28e2b", "#f7b46f", "#c96d12")  # front, above, right
_SHADE = "#4e79a7"


class _Viewport(NamedTuple):
    """The positions of items of up to three dimensions in a drawing of size `width` by `height`."""

    shape: tuple[int, int, int]
    sides: tuple[float, float, float]
    deep: bool

    @property
    def depth(self) -> float:
        """The length of the side away from the viewer, as drawn."""
        return self.sides[0] if self.deep else 0.0

    @property
    def width(self) -> float:
        right, _ = _DEEP
        return self.sides[2] + right * self.depth

    @property
    def height(self) -> float:
        _, up = _DEEP
        return self.sides[1] + up * self.depth

    def point(self, items: Sequence[float]) -> Point:
        scaled = []
        for side, i, n in zip(self.sides, items, self.shape, strict=True):
            scaled.append(side * i / n if n else 0.0)
        depth, y, x = scaled
        if not self.deep:
            return x, y
        # The first dimension extends to the right and up.
        behind = self.sides[0] - depth
        right, up = _DEEP
        return x + right * depth, y + up * behind

    def faces(self, box: Box) -> list[list[Point]]:
        """Return the corners of the visible sides of a box: front, top, right."""
        (near, far), (top, low), (left, right) = box
        above_left = (near, top, left)
        above_right = (near, top, right)
        below_left = (near, low, left)
        below_right = (near, low, right)
        corners = [[above_left, above_right, below_right, below_left]]
        if self.deep:
            far_left = (far, top, left)
            far_right = (far, top, right)
            far_below = (far, low, right)
            corners.append([above_left, above_right, far_right, far_left])
            corners.append([above_right, far_right, far_below, below_right])
        return [[self.point(corner) for corner in face] for face in corners]


def draw(
    shape: Sequence[int],
    cut: Sequence[int],
    *,
    solid: Iterable[Box] = (),
    shaded: Iterable[Box] = (),
    names: Sequence[str | None] | None = None,
) -> str:
    """Draw an array that is cut at regular intervals.

    Parameters
    ----------
    shape, cut : sequence of int
        Extents of the array, and of the parts into which it is cut.
    solid, shaded : iterable of Box
        Parts to fill with colour, and parts to tint.
    names : sequence of str or None, optional
        Names of the dimensions.

    Returns
    -------
    str
        An ``<svg>`` element.
    """
    ndim = len(shape)
    solid = list(solid)
    shaded = list(shaded)
    labels = []
    for name, n in zip(names or [None] * ndim, shape, strict=True):
        labels.append(f"{name or ''} {n}".strip())
    # Each drawing shows up to three dimensions; the last drawing shows three, the first the remaining dimensions.
    groups: list[slice] = []
    for stop in range(ndim, 0, -3):
        start = max(0, stop - 3)
        groups.insert(0, slice(start, stop))
    pieces = []
    x = 0.0
    height = 0.0
    for axes in groups or [slice(0, 0)]:
        tinted = _project(shaded, axes)
        coloured = _project(solid, axes)
        drawn, width, high = _group(shape[axes], cut[axes], coloured, tinted, labels[axes])
        pieces.append(f'<g transform="translate({x:.0f},0)">{drawn}</g>')
        x += width
        height = max(height, high)
    style = "color: inherit; font: 11px sans-serif; overflow: visible"
    content = "".join(pieces)
    return f'<svg width="{x:.0f}" height="{height:.0f}" style="{style}" role="img">{content}</svg>'


def _project(boxes: Iterable[Box], axes: slice) -> list[Box]:
    return merge(dict.fromkeys(box[axes] for box in boxes))


def merge(boxes: Iterable[Box]) -> list[Box]:
    """Join boxes that touch along one dimension and have the same extents along the others.

    Examples
    --------
    >>> merge([((0, 2), (0, 2)), ((0, 2), (2, 4)), ((2, 4), (0, 4))])
    [((0, 4), (0, 4))]
    """
    pieces = list(boxes)
    ndim = len(pieces[0]) if pieces else 0
    for axis in reversed(range(ndim)):
        pieces = _merge_along(axis, pieces)
    if len(pieces) > _SOLIDS:
        # Viewers cannot distinguish this many boxes, and browsers draw them slowly.
        sides = zip(*pieces, strict=True)
        pieces = [tuple(map(_hull, sides))]
    return pieces


def _merge_along(axis: int, boxes: list[Box]) -> list[Box]:
    """Join boxes that touch along an axis and have the same extents along the others."""
    rows: dict[tuple[Box, Box], list[Side]] = {}
    for box in boxes:
        row = box[:axis], box[axis + 1 :]
        rows.setdefault(row, []).append(box[axis])
    merged: list[Box] = []
    for before, after in sorted(rows):
        sides = _join(rows[before, after])
        merged.extend((*before, side, *after) for side in sides)
    return merged


def _join(sides: list[Side]) -> list[Side]:
    """Join ranges that touch or overlap."""
    joined: list[Side] = []
    for start, stop in sorted(sides):
        if joined and joined[-1][1] >= start:
            joined[-1] = _hull([joined[-1], (start, stop)])
        else:
            joined.append((start, stop))
    return joined


def _hull(ranges: Sequence[Side]) -> Side:
    first = min(start for start, _ in ranges)
    last = max(stop for _, stop in ranges)
    return first, last


def _group(
    shape: Sequence[int],
    cut: Sequence[int],
    solid: list[Box],
    shaded: list[Box],
    labels: Sequence[str],
) -> tuple[str, float, float]:
    """Draw up to three dimensions; return the drawing with its width and height."""
    missing = 3 - len(shape)
    longest = max([*shape, 1])
    sides = [_SIZE * max(n / longest, _THIN) for n in shape]
    # Missing dimensions have one item. The drawing does not show them.
    extents = (*[1] * missing, *shape)
    lengths = (*[_STRIP] * missing, *sides)
    full = _Viewport(extents, lengths, deep=missing == 0)  # type: ignore[arg-type]
    cuts = [*[1] * missing, *cut]
    whole: Box = tuple((0, n) for n in full.shape)
    first: list[Side] = [(0, 1)] * missing

    def pad(boxes: Iterable[Box]) -> list[Box]:
        return [(*first, *box) for box in boxes]

    def distance(box: Box) -> tuple[int, int, int]:
        (near, _), (top, _), (left, _) = box
        return -near, -top, left

    outside = full.faces(whole)
    parts = [_polygon(face, _SHADE, 0.12) for face in outside]
    for box in pad(shaded):
        parts += [_polygon(face, _SHADE, 0.45) for face in full.faces(box)]
    # Draw nearer parts later, on top of the others.
    for box in sorted(pad(solid), key=distance):
        faces = zip(full.faces(box), _FACES, strict=False)
        parts += [_polygon(face, colour, 1) for face, colour in faces]
    parts += [_line(start, stop, 0.45) for start, stop in _lines(full, cuts)]
    parts += [_polygon(face, "none", 1, outline=True) for face in outside]
    parts += _labels(full, labels)
    inside = f'<g transform="translate(6,6)">{"".join(parts)}</g>'
    # The label of the last dimension is below, all others are to the right.
    # About 7 pixels a character. The label of the last dimension is below, all others are to the right.
    right = 0
    if len(labels) > 1:
        longest_label = max(map(len, labels[-3:-1]), default=0)
        right = min(8 + 7 * longest_label, 120)
    below = 18 if labels else 0
    width = full.width + 18 + right
    height = full.height + 12 + below
    return inside, width, height


def _lines(full: _Viewport, cuts: Sequence[int]) -> Iterable[tuple[Point, Point]]:
    """Yield the cut lines of the faces; if there are many, only every n-th line."""
    layers, rows, columns = map(_borders, full.shape, cuts)
    far, low, right = full.shape
    ends = [((0, i, 0), (0, i, right)) for i in rows]
    ends += [((0, 0, i), (0, low, i)) for i in columns]
    if full.deep:
        ends += [((i, 0, 0), (i, 0, right)) for i in layers]
        ends += [((0, 0, i), (far, 0, i)) for i in columns]
        ends += [((i, 0, right), (i, low, right)) for i in layers]
        ends += [((0, i, right), (far, i, right)) for i in rows]
    for start, stop in ends:
        yield full.point(start), full.point(stop)


def _borders(n: int, step: int) -> list[int]:
    if not step:
        return []
    borders = range(step, n, step)
    every = max(1, math.ceil(len(borders) / _LINES))
    return list(borders[::every])


def _labels(full: _Viewport, labels: Sequence[str]) -> Iterator[str]:
    far, low, right = full.shape
    below = (0, low, right / 2)
    beside = (far, low / 2, right)
    behind = (far / 2, low, right)
    places = (
        (below, 0, 14, "middle"),
        (beside, 5, 4, "start"),
        (behind, 5, 10, "start"),
    )
    # The last label belongs to the last dimension, which every drawing has.
    for label, place in zip(reversed(labels), places, strict=False):
        items, dx, dy, anchor = place
        x, y = full.point(items)
        yield _text(label, x + dx, y + dy, anchor)


def _text(text: str, x: float, y: float, anchor: str) -> str:
    short = text if len(text) <= 18 else f"{text[:8]}…{text[-8:]}"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{html_text(short)}</text>'


def _polygon(points: Sequence[Point], colour: str, opacity: float, *, outline: bool = False) -> str:
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    stroke = ' stroke="currentColor" stroke-width="1.2" stroke-linejoin="round"' if outline else ""
    return f'<polygon points="{corners}" fill="{colour}" fill-opacity="{opacity}"{stroke}/>'


def _line(start: Point, stop: Point, opacity: float) -> str:
    x1, y1 = start
    x2, y2 = stop
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="currentColor" stroke-width="0.7" stroke-opacity="{opacity}"/>'
