"""How things are shown to people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from b2array.codec import codecs
from b2array.codec import filters as filter_names
from b2array.codec.cparams import CParams

__all__ = ["Info", "codec", "counted", "filters", "nbytes"]

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


class Info(Mapping[str, Any]):
    """Names and values that print as a table, in a terminal and in a notebook."""

    def __init__(self, rows: Mapping[str, Any]) -> None:
        self._rows = dict(rows)

    def __getitem__(self, name: str) -> Any:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        width = max(map(len, self._rows), default=0)
        return "\n".join(f"{name:<{width}} : {value}" for name, value in self._rows.items())

    def _repr_html_(self) -> str:
        from html import escape  # takes longer to import than most of this package

        left = 'style="text-align: left"'
        rows = (
            f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(str(value))}</td></tr>"
            for name, value in self._rows.items()
        )
        return f"<table>{''.join(rows)}</table>"


def codec(cparams: CParams) -> str:
    """Return codec, level and split mode in one line."""
    return f"{codecs.codec_name(cparams.codec_id)}, level {cparams.clevel}, split {cparams.splitmode}"


def filters(cparams: CParams) -> str:
    """Return the filters in their order."""
    active = [
        filter_names.filter_name(fid) + (f"({meta})" if meta else "")
        for fid, meta in zip(cparams.filter_slots, cparams.meta_slots, strict=True)
        if fid
    ]
    return ", ".join(active) or "none"


def nbytes(count: int) -> str:
    """Return a number of bytes, exactly and, from 1 KiB on, in a unit that is easy to read.

    Examples
    --------
    >>> nbytes(1536), nbytes(12)
    ('1536 (1.5 KiB)', '12')
    """
    if count < 1024:
        return str(count)
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count} ({count / 1024**power:.1f} {_UNITS[power - 1]})"


def counted(n: int, noun: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> counted(1, "chunk"), counted(0, "chunk")
    ('1 chunk', '0 chunks')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
