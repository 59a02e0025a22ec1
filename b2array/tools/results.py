"""What `verify`, `repair`, `vacuum` and `repack` return: a headline, a table, and lines below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from types import MappingProxyType
from typing import Any, NamedTuple

from b2array.display.tables import Info, counted, near

__all__ = ["Failure", "Result", "Results", "Shown", "first_of", "table"]


class Shown(NamedTuple):
    """What is printed of a result: the outcome in a few words, a table of names and values, and lines below it."""

    headline: str
    rows: Mapping[str, Any] = MappingProxyType({})
    lines: Sequence[str] = ()


class Result:
    """The result for one frame. A dataclass whose fields are of types that JSON has, or tuples of them."""

    __slots__ = ()
    url: str

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return True

    def shown(self) -> Shown:
        """Return what is printed."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return all fields in types that JSON has."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def __str__(self) -> str:
        headline, rows, lines = self.shown()
        return "\n  ".join([f"{self.url}: {headline}", *repr(Info(rows)).splitlines(), *lines])

    def _repr_html_(self) -> str:
        headline, rows, lines = self.shown()
        below = "".join(f"<li>{escape(line)}</li>" for line in lines)
        head = f"<p>{escape(near(self.url))}: <b>{escape(headline)}</b></p>"
        return head + Info(rows)._repr_html_() + f"<ul>{below}</ul>" * bool(below)


@dataclass(frozen=True, slots=True)
class Failure(Result):
    """A frame without a result, and the reason."""

    url: str
    error: str
    damaged: bool

    @property
    def ok(self) -> bool:
        """False: nothing is known to be in order."""
        return False

    def shown(self) -> Shown:
        """Return the error."""
        return Shown("failed", lines=(self.error,))


@dataclass(frozen=True, slots=True)
class Results:
    """The results for the members of a group.

    Parameters
    ----------
    url : str
        The group, without secrets.
    members : mapping of str to Report
        The result for each member by its name. The name of a group, which has attributes, ends with a slash. "." is
        the directory itself: its list of members, and what belongs to no member.
    """

    url: str
    members: Mapping[str, Result]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with any member."""
        return all(each.ok for each in self.members.values())

    @property
    def damaged(self) -> bool:
        """Whether the bytes of a member are not what they should be."""
        return any(not each.ok and getattr(each, "damaged", True) for each in self.members.values())

    def to_dict(self) -> dict[str, Any]:
        """Return all results in types that JSON has."""
        members = {name: each.to_dict() for name, each in self.members.items()}
        return {"url": self.url, "ok": self.ok, "members": members}

    def _cells(self) -> list[list[str]]:
        found = {name: each.shown() for name, each in self.members.items()}
        columns = list(dict.fromkeys(column for each in found.values() for column in each.rows))
        cells = [[name, s.headline, *(str(s.rows.get(each, "")) for each in columns)] for name, s in found.items()]
        return [["member", "result", *columns], *cells]

    def _lines(self) -> Iterator[str]:
        for name, each in self.members.items():
            yield from (f"{name}: {line}" for line in each.shown().lines)

    def _headline(self) -> str:
        wrong = sum(not each.ok for each in self.members.values())
        return counted(len(self.members), "member") + (f", {wrong} of them not in order" if wrong else "")

    def __str__(self) -> str:
        cells = self._cells()
        shown = table(cells, "<" * len(cells[0])) if self.members else ()
        return "\n  ".join([f"{self.url}: {self._headline()}", *shown, *self._lines()])

    def _repr_html_(self) -> str:
        head, *rows = self._cells()
        cells = ["".join(f"<th>{escape(text)}</th>" for text in head)]
        cells += ["".join(f"<td>{escape(text)}</td>" for text in row) for row in rows]
        lines = "".join(f"<li>{escape(line)}</li>" for line in self._lines())
        whole = "".join(f"<tr>{row}</tr>" for row in cells)
        title = f"<p>{escape(near(self.url))}: <b>{escape(self._headline())}</b></p>"
        return f'{title}<table style="border-spacing: 1em 0; text-align: left">{whole}</table><ul>{lines}</ul>'


def first_of(names: Iterable[str], most: int = 8) -> str:
    """Return the first names as text."""
    every = list(names)
    return ", ".join(every[:most]) + (", ..." if len(every) > most else "")


def table(rows: Sequence[Sequence[str]], align: str) -> Iterator[str]:
    """Yield rows as text; `align` has ``<`` or ``>`` for each column."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(align))]
    for row in rows:
        cells = (f"{text:{side}{width}}" for text, side, width in zip(row, align, widths, strict=True))
        yield "  ".join(cells).rstrip()
