"""HTML around tables and drawings, for light and dark notebooks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["beside", "folded", "near", "short", "size", "table", "titled"]

_CELL = "text-align: left; padding: 1px 12px 1px 0"
_LONGEST = 100
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def table(rows: Mapping[str, Any], heads: Sequence[str] = ()) -> str:
    """Return a table with a row for each name; a value that is a tuple of str has a cell for each head."""
    lines = [f"<tr><th></th>{''.join(_cell('th', head) for head in heads)}</tr>"] if heads else []
    for name, value in rows.items():
        cells = value if heads and isinstance(value, tuple) else (value,)
        span = f' colspan="{len(heads)}"' if len(cells) < len(heads) else ""
        lines.append(f"<tr>{_cell('th', name)}{''.join(_cell('td', cell, span) for cell in cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _cell(kind: str, value: Any, span: str = "") -> str:
    return f'<{kind} style="{_CELL}"{span}>{escape(str(value))}</{kind}>'


def beside(*parts: str) -> str:
    """Put parts next to each other, as far as there is room."""
    style = "display: flex; flex-wrap: wrap; gap: 12px 36px; align-items: flex-start"
    return f'<div style="{style}">{"".join(f"<div>{part}</div>" for part in parts)}</div>'


def folded(summary: str, content: str) -> str:
    """Return a part that a click unfolds."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def titled(kind: str, where: str, parts: Iterable[str]) -> str:
    """Put parts below a line with the kind of a thing and its place."""
    return f"<div><b>{escape(kind)}</b> <code>{escape(near(where))}</code>{''.join(parts)}</div>"


def near(where: str) -> str:
    """Return a place as seen from the current directory, if it is in there."""
    try:
        return where.removeprefix(os.path.join(os.getcwd(), ""))  # noqa: PTH109, PTH118 - most places are URLs
    except FileNotFoundError:  # the current directory was removed
        return where


def size(nbytes: int) -> str:
    """Return a number of bytes in a unit that is easy to read.

    Examples
    --------
    >>> size(12), size(1536)
    ('12 bytes', '1.5 KiB')
    """
    power = min((nbytes.bit_length() - 1) // 10, len(_UNITS))
    return f"{nbytes / 1024**power:.1f} {_UNITS[power - 1]}" if power > 0 else f"{nbytes} bytes"


def short(value: Any) -> str:
    """Return a value in one short line.

    Examples
    --------
    >>> short({"a": 1}), len(short("x" * 1000))
    ("{'a': 1}", 100)
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."
