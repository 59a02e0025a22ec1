"""Tables for display: as text in terminals, as HTML in light and dark notebooks."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from b2array.codec import codecs
from b2array.codec import filters as filter_names
from b2array.codec.cparams import AUTO, BOUNDS, CParams
from b2array.display.drawing import draw
from b2array.grid.layout import Layout
from b2array.printable import html_text, printable

__all__ = [
    "Block",
    "Info",
    "array_page",
    "beside",
    "codec",
    "corners",
    "count_text",
    "errors",
    "filter_list",
    "filters",
    "fold",
    "html_rows",
    "item",
    "narrow_size",
    "nbytes",
    "near",
    "put_title",
    "short",
    "size",
    "table",
    "text_table",
]

_CELL = "text-align: left; padding: 1px 12px 1px 0"
_LONGEST = 100
_LARGEST = 2**10
"""The maximum size of a printed item, in bytes."""
_EDGE = 3
"""The number of items shown at each end of an axis, as in NumPy."""
_PRINTED_NBYTES = 2**15
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def table(rows: Mapping[str, Any], heads: Sequence[str] = ()) -> str:
    """Return a table with a row for each name. A value may be a tuple of str, with an item for each column."""
    lines = []
    if heads:
        lines.append(_line("th", heads))
    for name, value in rows.items():
        values = value if heads and isinstance(value, tuple) else (value,)
        span = ""
        if len(values) + 1 < len(heads):
            span = f' colspan="{len(heads) - 1}"'
        cells = [_cell("td", each, span) for each in values]
        lines.append(f"<tr>{_cell('th', name)}{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def html_rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts with the given column headings."""
    titles = _line("th", heads)
    lines = [_line("td", row) for row in rows]
    return f"<table>{titles}{''.join(lines)}</table>"


def _line(kind: str, texts: Iterable[str]) -> str:
    cells = [_cell(kind, text) for text in texts]
    return f"<tr>{''.join(cells)}</tr>"


def text_table(rows: Sequence[Sequence[str]], align: str) -> Iterator[str]:
    """Yield rows as aligned text; `align` has ``<`` or ``>`` for each column."""
    texts = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        cells = []
        for text, side, width in zip(row, align, widths, strict=True):
            cells.append(f"{text:{side}{width}}")
        # Trailing spaces would wrap in narrow terminals.
        yield "  ".join(cells).rstrip()


def _cell(kind: str, value: Any, span: str = "") -> str:
    return f'<{kind} style="{_CELL}"{span}>{html_text(value)}</{kind}>'


def beside(*parts: str) -> str:
    """Place parts next to each other if there is room."""
    style = "display: flex; flex-wrap: wrap; gap: 12px 36px; align-items: flex-start"
    columns = [f"<div>{part}</div>" for part in parts]
    return f'<div style="{style}">{"".join(columns)}</div>'


def _row(*parts: str) -> str:
    """Place parts next to each other, even if they do not fit."""
    return f'<div style="display: flex; gap: 12px 36px; align-items: flex-start">{"".join(parts)}</div>'


def fold(summary: str, content: str) -> str:
    """Return a part that expands on a click."""
    return f"<details><summary>{html_text(summary)}</summary>{content}</details>"


def put_title(kind: str, where: str, parts: Iterable[str]) -> str:
    """Place parts below a title line with the kind and location of an object."""
    return f"<div><b>{html_text(kind)}</b> <code>{html_text(near(where))}</code>{''.join(parts)}</div>"


def near(where: str) -> str:
    """Return a path relative to the current directory, if the path is inside the directory."""
    try:
        return where.removeprefix(os.path.join(os.getcwd(), ""))  # noqa: PTH109, PTH118 - most places are URLs
    except FileNotFoundError:  # the current directory has been removed
        return where


def size(nbytes: int) -> str:
    """Format a number of bytes in a readable unit.

    Examples
    --------
    >>> size(12), size(1536)
    ('12 bytes', '1.5 KiB')
    """
    power = min((nbytes.bit_length() - 1) // 10, len(_UNITS))
    if power <= 0:
        return f"{nbytes} bytes"
    return f"{nbytes / 1024**power:.1f} {_UNITS[power - 1]}"


def narrow_size(nbytes: int) -> str:
    """Format a number of bytes for a narrow column, with "B" instead of "bytes".

    Examples
    --------
    >>> narrow_size(12)
    '12 B'
    """
    return size(nbytes).replace(" bytes", " B")


def short(value: Any) -> str:
    """Format a value as one short line.

    Examples
    --------
    >>> short({"a": 1}), len(short("x" * 1000))
    ("{'a': 1}", 100)
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def item(value: Any) -> Any:
    """Return an item for a table: unchanged, or as a short text if it is large or if NumPy cannot print it.

    Examples
    --------
    >>> item(np.float32(0.5)), item(np.zeros((), "M8")[()]), item(np.zeros((), "V5000")[()])
    (np.float32(0.5), '0x0000000000000000', '0x0000000000000000..., 4.9 KiB')
    """
    scalar = np.asarray(value)
    if scalar.nbytes > _LARGEST:
        return f"0x{scalar.tobytes()[:8].hex()}..., {size(scalar.nbytes)}"
    try:
        str(value)
    except ValueError:  # a time without a unit
        return f"0x{scalar.tobytes().hex()}"
    return value


T = TypeVar("T")


class Block(AbstractContextManager[T]):
    """A context manager whose repr describes it."""

    def __init__(self, what: str, inner: AbstractContextManager[T]) -> None:
        self._what = what
        self._inner = inner

    def __enter__(self) -> T:
        return self._inner.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return self._inner.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<b2array: {printable(self._what)}, for the with statement>"


class Info(Mapping[str, Any]):
    """Names and values that print as a table in a terminal; in a notebook, `page` can return more."""

    def __init__(self, rows: Mapping[str, Any], page: Callable[[], str] | None = None) -> None:
        self._rows = dict(rows)
        self._page = page

    def __getitem__(self, name: str) -> Any:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        rows = []
        for name, value in self._rows.items():
            rows.append((printable(name), printable(value, keep_lines=True)))
        width = max((len(name) for name, _ in rows), default=0)
        below = "\n" + " " * (width + 3)  # indent further lines of a value, so that they do not look like rows
        lines = []
        for name, value in rows:
            text = value.replace("\n", below)
            lines.append(f"{name:<{width}} : {text}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return table(self._rows) if self._page is None else self._page()


def corners(shape: Sequence[int], itemsize: int, read: Callable[[Any], Any]) -> str:
    """Return the text that NumPy prints for a large array. `read` takes positions along each axis.

    The text is empty if it would be long, or if NumPy cannot print the items.

    Examples
    --------
    >>> a = np.arange(4000).reshape(40, 100)
    >>> print(corners(a.shape, 8, lambda key: a[np.ix_(*key)]))
    [[   0    1    2 ...   97   98   99]
     [ 100  101  102 ...  197  198  199]
     [ 200  201  202 ...  297  298  299]
     ...
     [3700 3701 3702 ... 3797 3798 3799]
     [3800 3801 3802 ... 3897 3898 3899]
     [3900 3901 3902 ... 3997 3998 3999]]
    """
    # Read one item more than NumPy shows at both ends, so that NumPy omits the middle item.
    ends = [_ends(n) for n in shape]
    nitems = math.prod(map(len, ends))
    if nitems * itemsize > _PRINTED_NBYTES:
        return ""
    threshold = 0 if any(n > 2 * _EDGE for n in shape) else sys.maxsize
    items = np.asarray(read(tuple(ends)))
    try:
        return np.array2string(items, threshold=threshold, edgeitems=_EDGE)
    except ValueError:  # times without a unit
        return ""


def _ends(n: int) -> list[int]:
    if n <= 2 * _EDGE:
        return [*range(n)]
    return [*range(_EDGE + 1), *range(n - _EDGE, n)]


_ON_THE_PAGE = {
    "shape",
    "chunks",
    "blocks",
    "grid",
    "dtype",
    "ratio",
    "codec",
    "filters",
    "errors",
    "dims",
    "url",
    "attrs",
}
"""The rows in the upper part of an array's page."""


def array_page(
    rows: Mapping[str, Any],
    layout: Layout,
    attrs: Mapping[str, Any],
    values: str = "",
) -> str:
    """Return the page of an array: table, attributes, values, and a drawing of its chunks and blocks."""
    extents = (layout.shape, layout.chunks, layout.blocks)
    sizes = [math.prod(each) * layout.itemsize for each in extents]
    # The text begins with the number of bytes, as `nbytes` writes it.
    cbytes = int(rows["cbytes"].split()[0])
    stored = "nothing: all items are the fill value"
    if cbytes:
        stored = f"{size(cbytes)}, ratio {rows['ratio']}"
    main: dict[str, Any] = {
        "shape": tuple(map(str, extents)),
        "size": tuple(map(size, sizes)),
        "number": ("", f"{layout.nchunks} in all", f"{layout.nblocks} a chunk"),
        "dtype": rows["dtype"],
        "stored": stored,
        "codec": f"{rows['codec']}; {rows['filters']}",
    }
    if rows["errors"] != "none":
        main["errors"] = rows["errors"]
    if rows.get("snapshot"):
        main["snapshot"] = f"{rows['snapshot']}: an earlier state, read-only"
    if rows["dims"]:
        main["dims"] = ", ".join(str(name) for name in rows["dims"])
    whole_chunk = tuple((0, extent) for extent in layout.chunks)
    extents_of_first = map(min, layout.chunks, layout.shape)
    first = tuple((0, extent) for extent in extents_of_first)
    drawings = _row(
        draw(layout.shape, layout.chunks, shaded=[first], names=rows["dims"]),
        draw(layout.chunks, layout.blocks, shaded=[whole_chunk]),
    )
    overview = table(main, ("", "array", "chunk", "block"))
    parts = [beside(overview, drawings)]
    if values:
        parts.append(fold("values", f"<pre>{html_text(values)}</pre>"))
    if attrs:
        texts = {name: short(value) for name, value in attrs.items()}
        parts.append(fold(f"attributes ({len(attrs)})", table(texts)))
    rest = {name: value for name, value in rows.items() if name not in _ON_THE_PAGE}
    parts.append(fold("more", table(rest)))
    return put_title("b2array.NDArray", rows["url"], parts)


def codec(cparams: CParams) -> str:
    """Format codec, level and split mode as one line."""
    return f"{codecs.codec_name(cparams.codec_id)}, level {cparams.clevel}, split {cparams.splitmode}"


def filters(cparams: CParams) -> str:
    """Format the filters in order; "auto" if each chunk has its own filters."""
    if cparams.filters == AUTO:
        return AUTO
    return filter_list(zip(cparams.filter_slots, cparams.meta_slots, strict=True))


def filter_list(slots: Iterable[tuple[int, int]]) -> str:
    """Format the filters in the slots of a header, given with their parameters.

    Examples
    --------
    >>> filter_list([(0, 0), (4, 10), (1, 0)])
    'trunc_prec(10), shuffle'
    """
    active = []
    for filter_id, meta in slots:
        if not filter_id:  # an empty slot
            continue
        name = filter_names.filter_name(filter_id)
        active.append(f"{name}({meta})" if meta else name)
    return ", ".join(active) or "none"


def errors(cparams: CParams) -> str:
    """Format the errors that stored values may have.

    Examples
    --------
    >>> errors(CParams(absolute_error=0.01)), errors(CParams())
    ('absolute_error 0.01', 'none')
    """
    texts = []
    for name in (*BOUNDS, "tolerance"):
        bound = getattr(cparams, name)
        if bound is not None:
            texts.append(f"{name} {bound:g}")
    return ", ".join(texts) or "none"


def nbytes(count: int) -> str:
    """Format an exact number of bytes, and from 1 KiB on also the size in a readable unit.

    Examples
    --------
    >>> nbytes(1536), nbytes(12)
    ('1536 (1.5 KiB)', '12')
    """
    return str(count) if count < 1024 else f"{count} ({size(count)})"


def count_text(n: int, noun: str) -> str:
    """Format a number with a noun in the singular or plural.

    Examples
    --------
    >>> count_text(1, "chunk"), count_text(0, "chunk")
    ('1 chunk', '0 chunks')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
