"""Results of `verify`, `repair`, `vacuum` and `repack`: a headline, a table, and further lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, NamedTuple

from b2array.display import text_tables
from b2array.printable import html_text, printable

__all__ = ["Failure", "Result", "ResultSummary", "Results", "first_of"]


class ResultSummary(NamedTuple):
    """The printed form of a result: the outcome in a few words, a table, and further lines.

    `rows` maps names to values. With `heads`, the column headings, each value is a tuple of texts.
    """

    headline: str
    rows: Mapping[str, Any] = MappingProxyType({})
    lines: Sequence[str] = ()
    heads: Sequence[str] = ()


class Result:
    """The result for one frame: a dataclass whose fields have JSON-compatible types or are tuples of such types."""

    __slots__ = ()
    url: str

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return True

    def summarize(self) -> ResultSummary:
        """Return the printed form."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-compatible types."""
        values = {}
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            values[each.name] = list(value) if isinstance(value, tuple) else value
        return values

    def __str__(self) -> str:
        headline, rows, lines, heads = self.summarize()
        if heads:
            cells = [(name, *row) for name, row in rows.items()]
            below = list(text_tables.text_table([heads, *cells], "<" * len(heads)))
        else:
            below = repr(text_tables.Info(rows)).splitlines()
        title = printable(f"{self.url}: {headline}")
        return "\n  ".join([title, *below, *map(printable, lines)])

    def _repr_html_(self) -> str:
        headline, rows, lines, heads = self.summarize()
        title = f"<p>{html_text(text_tables.near(self.url))}: <b>{html_text(headline)}</b></p>"
        items = [f"<li>{html_text(line)}</li>" for line in lines]
        below = f"<ul>{''.join(items)}</ul>" if items else ""
        return title + text_tables.table(rows, heads) + below


@dataclass(frozen=True, slots=True)
class Failure(Result):
    """A frame without a result, and the reason."""

    url: str
    error: str
    damaged: bool

    @property
    def ok(self) -> bool:
        """Always False, because the frame could not be processed."""
        return False

    def summarize(self) -> ResultSummary:
        """Return the error."""
        return ResultSummary("failed", lines=(self.error,))


@dataclass(frozen=True, slots=True)
class Results(Result):
    """The results for the members of a group: ``results[name]`` is one member's result, and a loop yields the names.

    Parameters
    ----------
    url : str
        The group, without secrets.
    members : mapping of str to Report
        The result for each member by name. The name of a group with attributes ends with a slash. "." is the directory
        itself: its list of members, and files that belong to no member.
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
        """Whether the bytes of a member are damaged."""
        for each in self.members.values():
            is_damaged = each.damaged if isinstance(each, Failure) else not each.ok
            if is_damaged:
                return True
        return False

    def to_dict(self) -> dict[str, Any]:
        """Return all results as JSON-compatible types."""
        members = {name: each.to_dict() for name, each in self.members.items()}
        return {"url": self.url, "ok": self.ok, "members": members}

    def summarize(self) -> ResultSummary:
        """Summarize the numbers of all members and of damaged members, with a row and further lines for each member."""
        members = {name: each.summarize() for name, each in self.members.items()}
        # Members may have different rows; the table has a column for every name.
        columns = list(dict.fromkeys(column for each in members.values() for column in each.rows))
        rows = {}
        lines = []
        for name, each in members.items():
            cells = [str(each.rows.get(column, "")) for column in columns]
            rows[name] = (each.headline, *cells)
            lines += [f"{name}: {line}" for line in each.lines]
        headline = text_tables.count_text(len(members), "member")
        nwrong = sum(not each.ok for each in self.members.values())
        if nwrong:
            headline += f", {nwrong} of them not in order"
        return ResultSummary(headline, rows, lines, ("member", "result", *columns) if rows else ())


def first_of(names: Iterable[str], most: int = 8) -> str:
    """Join the first few names."""
    every = list(names)
    listed = ", ".join(every[:most])
    return f"{listed}, ..." if len(every) > most else listed
