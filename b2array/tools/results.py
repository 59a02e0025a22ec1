"""Results of `verify`, `repair`, `vacuum` and `repack`: a headline, a table, and lines below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, NamedTuple

from b2array.display import tables
from b2array.printable import html_text, printable

__all__ = ["Failure", "Result", "Results", "Shown", "first_of", "table"]


class Shown(NamedTuple):
    """A result as it is printed: the outcome in a few words, a table, and lines below it.

    `rows` has a value for each name. If there are `heads`, of the names and of more columns, it has a tuple of texts.
    """

    headline: str
    rows: Mapping[str, Any] = MappingProxyType({})
    lines: Sequence[str] = ()
    heads: Sequence[str] = ()


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
        headline, rows, lines, heads = self.shown()
        if heads:
            cells = table([heads, *((name, *row) for name, row in rows.items())], "<" * len(heads))
        else:
            cells = iter(repr(tables.Info(rows)).splitlines())
        return "\n  ".join([printable(f"{self.url}: {headline}"), *cells, *map(printable, lines)])

    def _repr_html_(self) -> str:
        headline, rows, lines, heads = self.shown()
        below = "".join(f"<li>{html_text(line)}</li>" for line in lines)
        title = f"<p>{html_text(tables.near(self.url))}: <b>{html_text(headline)}</b></p>"
        return title + tables.table(rows, heads) + f"<ul>{below}</ul>" * bool(below)


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
class Results(Result):
    """The results for the members of a group: ``results[name]`` is one member's result, and a loop yields the names.

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

    def __getitem__(self, name: str) -> Result:
        return self.members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __bool__(self) -> bool:
        return True  # also for a group without members

    @property
    def nbytes(self) -> int:
        """Number of bytes that `vacuum` or `repack` freed, or would free, in all members."""
        return sum(getattr(each, "nbytes", 0) for each in self.members.values())

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with any member."""
        return all(each.ok for each in self.members.values())

    @property
    def damaged(self) -> bool:
        """Whether the bytes of a member are not what they should be."""
        return any(each.damaged if isinstance(each, Failure) else not each.ok for each in self.members.values())

    def to_dict(self) -> dict[str, Any]:
        """Return all results in types that JSON has."""
        members = {name: each.to_dict() for name, each in self.members.items()}
        return {"url": self.url, "ok": self.ok, "members": members}

    def shown(self) -> Shown:
        """Return how many members there are, and how many are not in order, with a row and the lines of each."""
        members = {name: each.shown() for name, each in self.members.items()}
        columns = list(dict.fromkeys(column for each in members.values() for column in each.rows))
        rows = {
            name: (each.headline, *(str(each.rows.get(column, "")) for column in columns))
            for name, each in members.items()
        }
        wrong = sum(not each.ok for each in self.members.values())
        headline = tables.count_text(len(members), "member") + (f", {wrong} of them not in order" if wrong else "")
        lines = [f"{name}: {line}" for name, each in members.items() for line in each.lines]
        return Shown(headline, rows, lines, ("member", "result", *columns) if rows else ())


def first_of(names: Iterable[str], most: int = 8) -> str:
    """Return the first names as text."""
    every = list(names)
    return ", ".join(every[:most]) + (", ..." if len(every) > most else "")


def table(rows: Sequence[Sequence[str]], align: str) -> Iterator[str]:
    """Yield rows as text; `align` has ``<`` or ``>`` for each column."""
    texts = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(align))]
    for row in texts:
        cells = (f"{text:{side}{width}}" for text, side, width in zip(row, align, widths, strict=True))
        yield "  ".join(cells).rstrip()
