"""Random transactions beside other writers: what is there at the end follows from some order of the commits.

A transaction of a group does some steps. Between them, other writers commit, or begin transactions that end later. Each
commit is then repeated on a plain model of the group, in all orders that time allows. In one of them each transaction
must read what it has read, and the group must show at the end what the model has. A refused commit is in no order.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import clouds
import fsspec
import numpy as np
import pytest
from clouds import Cloud
from operations import compare

import b2array
from b2array import Group, config, open_group
from b2array.catalog.manifest import MANIFEST
from b2array.errors import B2ArrayError, ConflictError
from b2array.group.ragged import Rows
from b2array.store import base
from b2array.store.base import Head
from b2array.store.open import open_store

# A transaction may end before it merges its forks.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*never merged",
    "ignore:.*fork",
    # A writer by URL changes a member that its group has not adopted.
    "ignore:.*is rewritten with every change",
)

MEMBERS = ("a", "b", "in/a", "in/b", "out/a")
GROUPS = ("in", "out")
SNAPSHOTS = ("s", "t")
RECORD = np.dtype([("x", "i4"), ("y", "i8")])
FORMS = (
    ("contiguous", np.dtype("i8")),
    ("sparse", np.dtype("i8")),
    ("contiguous", RECORD),
    ("sparse", np.dtypes.StringDType()),
)
"""The layouts and types that members have."""


# What a step does to a group.


@dataclass(frozen=True, slots=True)
class Step:
    """A verb, and what it takes: each verb uses only some of this."""

    verb: str
    member: str = "a"
    other: str = "b"
    group: str = "in"
    snapshot: str = "s"
    place: int = 0
    value: int = 0
    form: int = 0

    @property
    def other_group(self) -> str:
        return GROUPS[1 - GROUPS.index(self.group)]

    @property
    def rows(self) -> str:
        """The group of rows of different lengths."""
        return "rows"

    @property
    def first_items(self) -> list[int]:
        """What a new member has."""
        return [self.value, 1, 2, 3]

    @property
    def layout(self) -> dict[str, Any]:
        """How a new member is stored."""
        return {"layout": FORMS[self.form][0], "chunks": (4,), "blocks": (2,)}

    @property
    def dtype(self) -> Any:
        return FORMS[self.form][1]

    def __str__(self) -> str:
        verb, used = VERBS[self.verb], []
        for name in verb.uses.split():
            value = getattr(self, name)
            used.append("{} {}".format(*FORMS[value]) if name == "form" else str(value))
        return f"{self.verb.replace('_', ' ')} {', '.join(used)}"


def pack(numbers: Sequence[int], dtype: Any) -> Any:
    """Return numbers as items of a type."""
    if dtype.names:
        return np.array([(number, number) for number in numbers], dtype)
    return np.array([str(number) for number in numbers] if dtype.kind == "T" else numbers, dtype)


def unpack(items: Any) -> list[int]:
    """Return the numbers in items; fails if the fields of a record differ."""
    if items.dtype.names:
        assert items["x"].tolist() == items["y"].tolist()
        items = items["x"]
    return [int(item or 0) for item in items.tolist()]


class Writer:
    """A group as a writer reaches it, and the forks that it has not merged yet."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.forks: list[Group] = []

    def __contains__(self, name: str) -> bool:
        return name in self.group

    def __getitem__(self, name: str) -> Any:
        return self.group[name] if name else self.group

    def read(self, name: str) -> list[int]:
        return unpack(self[name][...])

    def create(self, step: Step, **options: Any) -> None:
        items = pack(step.first_items, step.dtype)
        self.group.create(step.member, data=items, **step.layout, **options)


class WriterByUrl(Writer):
    """One who opens each member and each inner group by its own URL."""

    def __getitem__(self, name: str) -> Any:
        found = self.group[name] if name else self.group
        (head,) = self.group._home.store.head([MANIFEST], 1)
        if isinstance(found, Group) and not isinstance(head, Head):
            # Without a manifest around it, this would become a separate group, which a group in an object store omits.
            return found
        again = open_group if isinstance(found, Group) else b2array.open
        return again(found.url, "r+", storage_options=open_options(self.group))


def open_options(group: Group) -> dict[str, Any]:
    return group._home.storage_options


@dataclass
class Member:
    """An array in the model."""

    items: list[int]
    unit: int | None = None


Contents = tuple[dict[str, Member], dict[str, int | None]]


class Impossible(LookupError):
    """A commit does not fit what is there."""


@dataclass
class Model:
    """A group in plain Python.

    `units` has the attribute of each group that has attributes. A group without them exists while it has members.
    """

    members: dict[str, Member] = field(default_factory=dict)
    units: dict[str, int | None] = field(default_factory=dict)
    snapshots: dict[str, Contents] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    """The snapshots that the commit under way makes and drops at its end."""
    forks: list[Callable[[], None]] = field(default_factory=list)
    """What forks that are not merged yet have done."""

    def groups(self) -> set[str]:
        """Return the names of all groups below the outermost one."""
        names = [*self.units, *(name.rpartition("/")[0] for name in self.members)]
        parts = [name.split("/") for name in names if name]
        return {"/".join(part[:length]) for part in parts for length in range(1, len(part) + 1)}

    def require(self, name: str) -> None:
        if name not in self.members and name not in self.groups():
            raise Impossible(name)

    def add(self, name: str, member: Member) -> None:
        if name in self.members:
            raise Impossible(name)
        self.members[name] = member

    def write(self, name: str, place: int, number: int) -> None:
        items = self.members[name].items
        items[place] = number

    def remove(self, start: str) -> None:
        """Remove a member or a group. Another writer may have removed it before."""
        for known in (self.members, self.units):
            for name in self.below(start, known):
                del known[name]

    def below(self, start: str, known: dict[str, Any]) -> list[str]:
        return [name for name in known if f"{name}/".startswith(f"{start}/")]

    def copy(self, start: str, target: str) -> None:
        """Copy a member or a group."""
        self.require(start)
        for name in self.below(start, self.members):
            self.add(target + name.removeprefix(start), copy.deepcopy(self.members[name]))
        for name in self.below(start, self.units):
            into = target + name.removeprefix(start)
            if None not in (self.units[name], self.units.get(into)):
                raise Impossible(into)
            self.units[into] = self.units.get(into) if self.units[name] is None else self.units[name]

    def move(self, start: str, target: str) -> None:
        self.copy(start, target)
        self.remove(start)

    def unit_of(self, group: str) -> int | None:
        self.require(group)
        return self.units.get(group)

    def set_unit(self, group: str, value: int) -> None:
        """Set the attribute of a group. Another writer may have removed the group before: then it is there again."""
        self.units[group] = value

    def take(self, name: str) -> None:
        """Note a snapshot that the commit takes at its end."""
        if name in self.snapshots.keys() - self.dropped or name in self.taken:
            raise Impossible(name)
        self.taken.add(name)

    def drop(self, name: str) -> None:
        """Note a snapshot that the commit drops at its end; until then it can be restored.

        Another writer may have dropped it before.
        """
        self.dropped.add(name)

    def restore(self, name: str) -> None:
        self.members, self.units = copy.deepcopy(self.snapshots[name])

    def commit(self, commit: Commit) -> None:
        """Do what a commit has done; raises LookupError if that was impossible here."""
        for deed in commit.deeds:
            if deed.acts and VERBS[deed.step.verb].on_model(self, deed.step) != deed.seen:
                raise Impossible(deed)
        for name in self.dropped:
            self.snapshots.pop(name, None)
        for name in self.taken:
            self.snapshots[name] = copy.deepcopy((self.members, self.units))
        self.taken, self.dropped, self.forks = set(), set(), []

    def show(self) -> Shown:
        """Return what readers find."""
        snapshots = {name: shown(*contents) for name, contents in self.snapshots.items()}
        return shown(self.members, self.units), snapshots


Shown = tuple[dict[str, Any], dict[str, dict[str, Any]]]
"""What a group shows: the items and the attribute of each member, and of each group; and the same of each snapshot."""


def shown(members: dict[str, Member], units: dict[str, int | None]) -> dict[str, Any]:
    groups = dict.fromkeys({"", *Model(members, units).groups()})
    return groups | units | {name: (each.items, each.unit) for name, each in members.items()}


def look(group: Group) -> dict[str, Any]:
    """Return what a group shows, as `shown` does of the model."""
    found: dict[str, Any] = {"": group.attrs.get("unit")}
    for name, member in group.walk():
        unit = member.attrs.get("unit")
        found[name] = unit if isinstance(member, Group) else (unpack(member[...]), unit)
    return found


def look_everywhere(url: str, options: dict[str, Any]) -> Shown:
    try:
        group = open_group(url, storage_options=options)
    except FileNotFoundError:
        # Arrays in a directory are a group without a manifest, until the last one is deleted.
        group = open_group(url, "a", storage_options=options)
    names = [entry.name for entry in group.snapshots]
    return look(group), {name: look(open_group(url, at=name, storage_options=options)) for name in names}


# The verbs.

Ways = frozenset[str]
TRANSACTION: Ways = frozenset({"transaction"})
HANDLES: Ways = frozenset({"handle", "old handle", "thread"})
URL: Ways = frozenset({"url"})
EVERY: Ways = TRANSACTION | HANDLES | URL
FRESH: Ways = TRANSACTION | {"handle"}
"""The others copy what their handle shows, which other writers may have changed or deleted since."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the real group and of the model. Both return what the writer has seen, or None."""

    real: Callable[[Writer, Step], Any]
    on_model: Callable[[Model, Step], Any]
    uses: str
    """What it takes of a step."""
    needs: str = ""
    """What of that must be there; otherwise the writer does nothing."""
    lacks: str = ""
    """What of that must not be there."""
    ways: Ways = EVERY
    """The ways of writers that can do this."""
    refused: tuple[type[Exception], ...] = ()
    """Errors after which the writer goes on, because nothing has happened."""

    def wants(self, writer: Writer, step: Step) -> bool:
        """Say whether a writer does it, given what the group shows."""
        there = all(getattr(step, name) in writer for name in self.needs.split())
        return there and not any(getattr(step, name) in writer for name in self.lacks.split())


def of_array(
    real: Callable[[Any, Step], Any], on_model: Callable[[list[int], Step], Any], uses: str, ways: Ways = EVERY
) -> Verb:
    """Return a verb that changes one array, whose items are a list in the model."""
    return Verb(
        lambda writer, step: real(writer[step.member], step),
        lambda model, step: on_model(model.members[step.member].items, step),
        f"member {uses}",
        "member",
        ways=ways,
        refused=(IndexError,),
    )


def set_unit(writer: Writer, step: Step) -> None:
    writer[step.member].attrs["unit"] = step.value


def model_set_unit(model: Model, step: Step) -> None:
    model.members[step.member].unit = step.value


def write_item(array: Any, step: Step) -> None:
    array[step.place] = pack([step.value], array.dtype)[0]


def model_write_item(items: list[int], step: Step) -> None:
    items[step.place] = step.value


def append_by_appender(array: Any, step: Step) -> None:
    with array.appender() as out:
        for item in pack([step.value, step.value + 1], array.dtype):
            out.append(item)


def model_insert(items: list[int], step: Step) -> None:
    if step.place > len(items):
        raise Impossible(step)
    items.insert(step.place, step.value)


def model_resize(items: list[int], step: Step) -> None:
    items[:] = (items + [0] * 9)[: step.place + 3]


def replace(writer: Writer, step: Step) -> None:
    del writer.group[step.member]
    writer.create(step)


def model_replace(model: Model, step: Step) -> None:
    model.remove(step.member)
    model.add(step.member, Member(step.first_items))


def fork_and_merge(writer: Writer, step: Step) -> None:
    fork = sent(writer.group.fork())
    write_item(fork[step.member], step)
    writer.group.merge(sent(fork))


def read_both(writer: Writer, step: Step) -> list[list[int]]:
    names = [step.member, step.other]
    found = writer.group.read_many(dict.fromkeys(names, ...))
    return [unpack(found[name]) for name in names]


def fork_twice(writer: Writer, step: Step) -> None:
    """Merge two forks in the other order, of which one was forked again."""
    first = writer.group.fork()
    second = sent(writer.group.fork())
    inner = sent(first.fork())
    write_item(inner[step.member], step)
    second[step.other].attrs["unit"] = step.value
    first.merge(sent(inner))
    writer.group.merge(second, sent(first))


def model_fork_twice(model: Model, step: Step) -> None:
    model.write(step.member, step.place, step.value)
    model.members[step.other].unit = step.value


def begin_fork(writer: Writer, step: Step) -> None:
    """Let a fork write an item; the transaction merges it later."""
    fork = writer.group.fork()
    write_item(fork[step.member], step)
    writer.forks.append(fork)


def model_begin_fork(model: Model, step: Step) -> None:
    member = model.members.get(step.member)
    if member is not None and step.place >= len(member.items):
        raise Impossible(step)
    # Others may delete the member: a fork that is not merged changes nothing.
    model.forks.append(lambda: model.write(step.member, step.place, step.value))


def make_in_fork(writer: Writer, step: Step) -> None:
    """Make a member in a fork, and set an attribute of its group."""
    fork = sent(writer.group.fork())
    Writer(fork).create(step)
    fork.attrs["unit"] = step.value
    writer.group.merge(fork)


def model_make_in_fork(model: Model, step: Step) -> None:
    model.add(step.member, Member(step.first_items))
    model.units[""] = step.value


def merge_forks(writer: Writer, step: Step) -> None:
    """Merge all forks, the last one first."""
    writer.group.merge(*map(sent, reversed(writer.forks)))
    writer.forks.clear()


def model_merge_forks(model: Model, step: Step) -> None:
    for write in reversed(model.forks):
        write()
    model.forks.clear()


def sent(fork: Group) -> Group:
    """Return a fork as another process gets it."""
    return pickle.loads(pickle.dumps(fork))


def model_make_rows(model: Model, step: Step) -> None:
    model.units.setdefault("rows")
    model.add("rows/values", Member([step.value]))
    model.add("rows/offsets", Member([0, 1]))


def model_append_rows(model: Model, step: Step) -> None:
    values, offsets = (model.members[f"rows/{name}"].items for name in ("values", "offsets"))
    values += [step.value] * step.place + [1]
    offsets += [offsets[-1] + step.place, offsets[-1] + step.place + 1]


ARRAY_VERBS = {
    "write": of_array(write_item, model_write_item, "place value"),
    "append": of_array(
        lambda array, step: void(array.append(pack([step.value], array.dtype))),
        lambda items, step: items.append(step.value),
        "value",
    ),
    "append_steps": of_array(
        append_by_appender,
        lambda items, step: items.extend([step.value, step.value + 1]),
        "value",
        # An appender that cannot commit its steps warns of them.
        EVERY - {"old handle"},
    ),
    "insert": of_array(
        lambda array, step: void(array.insert(pack([step.value], array.dtype), step.place)),
        model_insert,
        "place value",
    ),
    "cut": of_array(
        lambda array, step: void(array.delete(step.place)), lambda items, step: items.__delitem__(step.place), "place"
    ),
    "resize": of_array(lambda array, step: array.resize(step.place + 3), model_resize, "place"),
}


def void(_: object) -> None:
    """Leave out what a method returns."""


VERBS = {
    **ARRAY_VERBS,
    "read": Verb(
        lambda writer, step: writer.read(step.member),
        lambda model, step: [*model.members[step.member].items],
        "member",
        "member",
        ways=TRANSACTION,
    ),
    "read_unit": Verb(
        lambda writer, step: writer[step.member].attrs.get("unit"),
        lambda model, step: model.members[step.member].unit,
        "member",
        "member",
        ways=TRANSACTION,
    ),
    "set_unit": Verb(set_unit, model_set_unit, "member value", "member"),
    "set_unit_of_all": Verb(
        lambda writer, step: writer.group.attrs.update(unit=step.value),
        lambda model, step: model.units.update({"": step.value}),
        "value",
    ),
    "delete": Verb(
        lambda writer, step: writer.group.__delitem__(step.member),
        lambda model, step: model.remove(step.member),
        "member",
        "member",
        ways=EVERY - URL,
    ),
    "create": Verb(
        lambda writer, step: writer.create(step),
        lambda model, step: model.add(step.member, Member(step.first_items)),
        "member value form",
        lacks="member",
        ways=EVERY - URL,
    ),
    "replace": Verb(replace, model_replace, "member value form", "member", ways=TRANSACTION),
    "overwrite": Verb(
        lambda writer, step: writer.create(step, overwrite=True), model_replace, "member value form", ways=HANDLES
    ),
    "move": Verb(
        lambda writer, step: writer.group.move(step.member, step.other),
        lambda model, step: model.move(step.member, step.other),
        "member other",
        "member",
        "other",
        ways=EVERY - URL,
    ),
    "copy": Verb(
        lambda writer, step: writer.group.copy(step.member, writer.group, step.other),
        lambda model, step: model.copy(step.member, step.other),
        "member other",
        "member",
        "other",
        ways=FRESH,
    ),
    "restore": Verb(
        lambda writer, step: writer.group.restore(step.snapshot),
        lambda model, step: model.restore(step.snapshot),
        "snapshot",
        ways=EVERY - URL,
        refused=(KeyError,),
    ),
    "read_both": Verb(
        read_both,
        lambda model, step: [[*model.members[name].items] for name in (step.member, step.other)],
        "member other",
        "member other",
        ways=TRANSACTION,
    ),
    "read_unit_of_group": Verb(
        lambda writer, step: writer[step.group].attrs["unit"],
        lambda model, step: model.unit_of(step.group),
        "group",
        "group",
        ways=TRANSACTION,
        refused=(KeyError,),  # what a transaction finds missing does not count
    ),
    "set_unit_of_group": Verb(
        lambda writer, step: writer[step.group].attrs.update(unit=step.value),
        lambda model, step: model.set_unit(step.group, step.value),
        "group value",
        "group",
    ),
    "require_group": Verb(
        lambda writer, step: void(writer.group.require_group(step.group)),
        lambda model, step: void(model.units.setdefault(step.group)),
        "group",
        lacks="group",
        ways=EVERY - URL,
    ),
    "require_array": Verb(
        lambda writer, step: void(writer.group.require_array(step.member, (4,), "i8", **step.layout)),
        lambda model, step: model.add(step.member, Member([0] * 4)),
        "member",
        lacks="member",
        ways=EVERY - URL,
    ),
    "delete_group": Verb(
        lambda writer, step: writer.group.__delitem__(step.group),
        lambda model, step: model.remove(step.group),
        "group",
        "group",
        ways=EVERY - URL,
    ),
    "move_group": Verb(
        lambda writer, step: writer.group.move(step.group, step.other_group),
        lambda model, step: model.move(step.group, step.other_group),
        "group other_group",
        "group",
        "other_group",
        ways=EVERY - URL,
    ),
    "copy_group": Verb(
        lambda writer, step: writer.group.copy(step.group, writer.group, step.other_group),
        lambda model, step: model.copy(step.group, step.other_group),
        "group other_group",
        "group",
        "other_group",
        ways=FRESH,
    ),
    "snapshot": Verb(
        lambda writer, step: writer.group.snapshot(step.snapshot),
        lambda model, step: model.take(step.snapshot),
        "snapshot",
        ways=EVERY - URL,
        refused=(FileExistsError,),
    ),
    "drop": Verb(
        lambda writer, step: writer.group.drop_snapshot(step.snapshot),
        lambda model, step: model.drop(step.snapshot),
        "snapshot",
        ways=EVERY - URL,
        refused=(KeyError,),
    ),
    "fork": Verb(
        fork_and_merge,
        lambda model, step: model.write(step.member, step.place, step.value),
        "member place value",
        "member",
        ways=TRANSACTION,
        refused=(IndexError,),
    ),
    "fork_twice": Verb(
        fork_twice,
        model_fork_twice,
        "member other place value",
        "member other",
        ways=TRANSACTION,
        refused=(IndexError,),
    ),
    "begin_fork": Verb(
        begin_fork,
        model_begin_fork,
        "member place value",
        "member",
        ways=TRANSACTION,
        refused=(IndexError,),
    ),
    "merge_forks": Verb(merge_forks, model_merge_forks, "", ways=TRANSACTION, refused=(ConflictError,)),
    "make_in_fork": Verb(make_in_fork, model_make_in_fork, "member value form", lacks="member", ways=TRANSACTION),
    "make_rows": Verb(
        lambda writer, step: void(Rows.create(writer.group.require_group("rows"), [[step.value]], chunks=(4,))),
        model_make_rows,
        "value",
        lacks="rows",
        ways=TRANSACTION,
    ),
    "append_rows": Verb(
        lambda writer, step: void(Rows(writer[step.rows]).append([[step.value] * step.place, [1]])),
        model_append_rows,
        "place value",
        "rows",
    ),
}


# What a writer does, and when.


@dataclass(frozen=True, slots=True)
class Turn:
    """The steps of one writer, and how it reaches the group.

    Another writer begins before the step of the transaction with the number `begin`, and commits before `end`.
    """

    steps: tuple[Step, ...]
    way: str = "transaction"
    begin: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """A transaction, and what other writers do meanwhile."""

    steps: tuple[Step, ...]
    others: tuple[Turn, ...] = ()
    is_behind: bool = False
    """Whether the transaction begins with a handle that has not seen the rounds before."""


@dataclass(frozen=True, slots=True)
class Story:
    """Some members, and rounds of writers."""

    first: tuple[Step, ...]
    by_urls: bool
    """Whether the first members are made by their own URLs."""
    is_kept: bool
    """Whether there is a snapshot of them."""
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class Deed:
    """What became of a step: whether the writer did it, and what it saw."""

    step: Step
    acts: bool
    seen: Any = None

    def __str__(self) -> str:
        what = str(self.step) if self.acts else f"({self.step})"
        return what if self.seen is None else f"{what} -> {self.seen}"


@dataclass
class Commit:
    """What one writer has done, and when: the moments of its begin and of its end."""

    who: str
    begin: int
    end: int | None = None
    deeds: list[Deed] = field(default_factory=list)
    error: Exception | None = None

    def __str__(self) -> str:
        outcome = "committed" if self.error is None else f"refused: {self.error!r}"
        lines = [f"{self.who}, from {self.begin} to {self.end}, {outcome}", *map(str, self.deeds)]
        return "\n    ".join(lines)


def orders(commits: Sequence[Commit]) -> Iterator[tuple[Commit, ...]]:
    """Yield all orders of commits in which none comes before another one that had ended when it began."""
    for order in itertools.permutations(commits):
        if all(later.end > earlier.begin for earlier, later in itertools.combinations(order, 2)):
            yield order


def explain(states: Sequence[Model], commits: Sequence[Commit], found: Shown) -> list[Model]:
    """Return the different states that orders of the commits lead to, and that show what was found."""
    ends: list[Model] = []
    for state, order in itertools.product(states, orders(commits)):
        model = copy.deepcopy(state)
        try:
            for commit in order:
                model.commit(commit)
        except LookupError:
            continue
        if model.show() == found and model not in ends:
            ends.append(model)
    return ends


# Playing a story.


class Stage:
    """The group of a story, and the handles to it."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.url, self.options = url, options
        self.moments = itertools.count()
        self.commits: list[Commit] = []

    def open(self) -> Group:
        return open_group(self.url, "a", storage_options=self.options)

    def prepare(self, story: Story) -> Model:
        """Make the first members."""
        model = Model()
        if not story.by_urls or not story.first:
            open_group(self.url, "w", storage_options=self.options)
        for step in story.first:
            if step.member in model.members:
                continue
            model.add(step.member, Member(step.first_items))
            if story.by_urls:
                url = f"{self.url}/{step.member}.b2nd"
                items = pack(step.first_items, step.dtype)
                b2array.asarray(items, url=url, storage_options=self.options, **step.layout).close()
            else:
                Writer(self.open()).create(step)
        self.old = self.open()
        if story.is_kept:
            self.open().snapshot("s")
            model.snapshots["s"] = copy.deepcopy((model.members, model.units))
        return model

    def play(self, one: Round) -> None:
        """Do the steps of a transaction, and what others do between them."""
        self.commits = []
        handle = self.old if one.is_behind else self.open()
        others = [(turn, Run(self, turn, f"writer {n} by {turn.way}", handle)) for n, turn in enumerate(one.others, 1)]
        run = Run(self, Turn(one.steps), TRANSACTION_ITSELF, handle)
        run.begin()
        for number in range(len(one.steps) + 1):
            self.meet(others, number)
            for step in one.steps[number : number + 1]:
                run.do(step)
        run.end()
        self.meet(others, None)

    def meet(self, others: Sequence[tuple[Turn, Run]], number: int | None) -> None:
        """Let others end, and begin, before a step with a number; None: all who are left end."""
        for turn, run in others:
            if run.is_open and (number is None or turn.end <= number):
                run.end()
            if turn.begin == number:
                run.begin()
                for step in turn.steps:
                    run.do(step)
                if turn.end <= number or turn.way != "transaction":
                    run.end()


TRANSACTION_ITSELF = "the transaction"
ERRORS = (B2ArrayError, FileExistsError, FileNotFoundError, KeyError)


class Run:
    """A writer at work, whose first error ends it."""

    def __init__(self, stage: Stage, turn: Turn, who: str, handle: Group) -> None:
        self.stage, self.way, self.who, self.handle = stage, turn.way, who, handle
        self.is_open = False

    def begin(self) -> None:
        self.commit = Commit(self.who, next(self.stage.moments))
        self.is_open, self.stack = True, ExitStack()
        if self.way == "transaction":
            group = self.handle if self.who == TRANSACTION_ITSELF else self.stage.open()
            self.writer = Writer(self.stack.enter_context(group.transaction()))
        elif self.way == "url":
            self.writer = WriterByUrl(self.stage.open())
        else:
            handles = {"handle": self.stage.open, "old handle": lambda: self.stage.old, "thread": lambda: self.handle}
            self.writer = Writer(handles[self.way]())

    def do(self, step: Step) -> None:
        """Do a step, unless the group has not what it needs."""
        if not self.is_open:
            return
        verb, acts, seen = VERBS[step.verb], False, None
        try:
            if verb.wants(self.writer, step):
                seen = self.called(verb.real, self.writer, step)
                acts = True
        except verb.refused:
            pass
        except ERRORS as error:
            self.fail(error)
        self.commit.deeds.append(Deed(step, acts, seen))

    def called(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function, in another thread if that is the way of the writer."""
        if self.way != "thread":
            return function(*arguments)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(function, *arguments).result(60)

    def fail(self, error: Exception) -> None:
        """Leave the transaction with an error."""
        try:
            self.stack.__exit__(type(error), error, error.__traceback__)
        finally:
            self.finish(error)

    def end(self) -> None:
        if not self.is_open:
            return
        try:
            self.stack.close()
        except ERRORS as error:
            self.finish(error)
        else:
            self.finish(None)

    def finish(self, error: Exception | None) -> None:
        self.is_open, self.commit.error = False, error
        self.commit.end = next(self.stage.moments)
        self.stage.commits.append(self.commit)


def tell(story: Story, url: str, options: dict[str, Any]) -> None:
    """Play a story, and check after each round that what is found follows from some order of its commits."""
    stage = Stage(url, options)
    states = [stage.prepare(story)]
    assert states[0].show() == look_everywhere(url, options)
    for one in story.rounds:
        stage.play(one)
        done = [commit for commit in stage.commits if commit.error is None]
        found = look_everywhere(url, options)
        explained = explain(states, done, found)
        assert explained, history(states, stage.commits, done, found)
        states = explained
        refused = [commit for commit in stage.commits if commit.who == TRANSACTION_ITSELF and commit.error]
        assert done or not refused, f"nobody else has committed, but the transaction is refused:\n{refused[0]}"
    report = b2array.verify(url, storage_options=options)
    assert report.ok, report


def history(states: Sequence[Model], commits: Sequence[Commit], done: Sequence[Commit], found: Shown) -> str:
    """Tell what has happened, what was found, and where each order leads."""
    lines = ["what was found follows from no order of the commits", "before:", *map(str, states[0].show())]
    lines += [str(commit) for commit in sorted(commits, key=lambda commit: commit.begin)]
    lines += ["found:", *map(str, found)]
    for order in orders(done):
        model, who = copy.deepcopy(states[0]), []
        try:
            for commit in order:
                who.append(commit.who)
                model.commit(commit)
        except LookupError as error:
            lines.append(f"{', '.join(who)}: impossible: {error}")
        else:
            lines += [f"{', '.join(who)}:", *map(str, model.show())]
    return "\n".join(lines)


# Drawing a story.


WHOLE = {"delete_group", "move_group", "copy_group"}
"""Verbs for a group with all that is in it."""
MAKES = WHOLE | {
    *("create", "move", "copy", "restore", "require_group", "require_array", "make_in_fork", "make_rows"),
    *("append_rows", "set_unit_of_group", "set_unit_of_all"),
}
"""Verbs that may make a member, or the first attributes of a group."""


def verbs_of(steps: Iterable[Step]) -> set[str]:
    return {step.verb for step in steps}


class Author:
    """Draws a story. It uses only some members and verbs, so that what needs several of them comes about often."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.members = chance.sample(MEMBERS, chance.randint(2, 4))
        self.verbs = {way: self.some(way) for way in sorted(EVERY)}

    def some(self, way: str) -> list[str]:
        """Choose verbs for writers of a way."""
        verbs = [name for name, verb in VERBS.items() if way in verb.ways]
        return self.chance.sample(verbs, min(6, len(verbs)))

    def step(self, way: str = "transaction") -> Step:
        chance = self.chance
        return Step(
            chance.choice(self.verbs[way]),
            *chance.sample(self.members, 2),
            chance.choice(GROUPS),
            chance.choice(SNAPSHOTS),
            chance.randrange(4),
            chance.randrange(10, 1000),
            chance.randrange(len(FORMS)),
        )

    def turn(self, length: int) -> Turn:
        """Draw what another writer does beside a transaction with a number of steps."""
        way = self.chance.choice([*sorted(EVERY), "transaction"])
        count = self.chance.randint(1, 3) if way == "transaction" else 1
        steps = tuple(self.step(way) for _ in range(count))
        begin = self.chance.randint(0, length)
        return Turn(steps, way, begin, begin + self.chance.choice([0, 0, 1, length + 1]))

    def round(self) -> Round:
        steps = tuple(self.step() for _ in range(self.chance.randint(1, 6)))
        others = [self.turn(len(steps)) for _ in range(self.chance.randrange(4))]
        # A writer deletes or moves a group as the handle shows it: what others have made in it since stays where it is.
        others = [turn for turn in others if turn.way == "handle" or not verbs_of(turn.steps) & WHOLE]
        if verbs_of(steps) & WHOLE:
            others = [turn for turn in others if not verbs_of(turn.steps) & MAKES]
        return Round(steps, tuple(others), is_behind=self.chance.random() < 0.5)

    def story(self) -> Story:
        there = [name for name in self.members if self.chance.random() < 0.8]
        first = tuple(dataclasses.replace(self.step(), member=name) for name in there)
        by_urls, is_kept = self.chance.random() < 0.3, self.chance.random() < 0.5
        return Story(first, by_urls, is_kept, tuple(self.round() for _ in range(3)))


def draw_story(chance: random.Random) -> Story:
    return Author(chance).story()


def smaller(story: Story) -> Iterator[Story]:
    """Yield stories that lack a round, another writer, a step or a first member of a story."""
    for n, one in enumerate(story.rounds):
        before, after = story.rounds[:n], story.rounds[n + 1 :]
        if before or after:
            yield dataclasses.replace(story, rounds=before + after)
        for shorter in [*without_one(one, "others"), *without_one(one, "steps")]:
            yield dataclasses.replace(story, rounds=(*before, shorter, *after))
        for m, turn in enumerate(one.others):
            for shorter in without_one(turn, "steps"):
                others = (*one.others[:m], shorter, *one.others[m + 1 :])
                yield dataclasses.replace(story, rounds=(*before, dataclasses.replace(one, others=others), *after))
    yield from without_one(story, "first")


def without_one(whole: Any, name: str) -> Iterator[Any]:
    """Yield copies of a value whose field with a name lacks one item."""
    items = getattr(whole, name)
    for n in range(len(items)):
        yield dataclasses.replace(whole, **{name: items[:n] + items[n + 1 :]})


def failure_of(story: Story, place: Place) -> Exception | None:
    try:
        tell(story, next(place.urls), place.options)
    except Exception as error:  # noqa: BLE001 - whatever it is, a smaller story may fail with it
        return error
    return None


def check_story(story: Story, place: Place) -> None:
    """Tell a story; if it fails, raise the error of a small one that fails in the same way."""
    error = failure_of(story, place)
    if error is None:
        return
    tries = islice(smaller(story), 100)
    while shorter := next(tries, None):
        other = failure_of(shorter, place)
        if type(other) is type(error):
            story, error, tries = shorter, other, islice(smaller(shorter), 100)
    error.add_note(f"the smallest story that was found: {story}")
    raise error


@dataclass(frozen=True, slots=True)
class Place:
    """Where groups are made."""

    urls: Iterator[str]
    options: dict[str, Any]
    stories: int
    """How many stories a usual run tells here."""


PLACES = [
    "local",
    "memory",
    "memory as a server",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("s3", "gcs", "azure")),
]


@pytest.fixture(params=PLACES)
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cloud_of: Callable[[str], Cloud],
) -> Iterator[Place]:
    """Gives a place of each kind, where writers do not wait long for each other."""
    outer, options, stories = f"memory://{tmp_path.name}", {}, 4
    if request.param == "local":
        outer = str(tmp_path)
    elif request.param in clouds.KINDS:
        cloud = cloud_of(request.param)
        outer, options, stories = cloud.make_bucket(f"orders-{uuid4()}"), cloud.options, 2
    elif request.param == "memory as a server":
        compare(type(open_store(outer)), monkeypatch)
    monkeypatch.setattr(base, "_LONGEST_PAUSE", 0.001)
    with config.using(threads=1):
        yield Place((f"{outer}/{number}.b2d" for number in itertools.count()), options, stories)
    fsspec.filesystem("memory").store.clear()


def test_transactions_follow_one_another_in_some_order(place: Place, seed: int, pytestconfig: pytest.Config) -> None:
    """With the option ``--groups``, this tells stories for so many seconds, otherwise a few."""
    seconds = pytestconfig.getoption("--groups") or 0
    stop, chance = time.monotonic() + seconds, random.Random(seed)
    for number in itertools.count():
        if time.monotonic() > stop and number >= place.stories:
            break
        check_story(draw_story(chance), place)


# The checker finds what cannot be.


def made(who: str, begin: int, end: int, *deeds: Deed) -> Commit:
    return Commit(who, begin, end, list(deeds))


READ_THEN_WRITE = [Deed(Step("read", "a"), acts=True, seen=[1]), Deed(Step("write", "b", value=2), acts=True)]
OVERWRITE = [Deed(Step("write", "a", value=5), acts=True)]


@pytest.mark.parametrize(
    ("ends", "a", "b", "is_right"),
    [
        ((3, 2), 5, 2, True),
        ((3, 2), 1, 2, False),  # the other writer's change is lost
        ((3, 2), 5, 1, False),  # the transaction's change is lost
        ((2, 4), 5, 2, True),
    ],
)
def test_the_checker_finds_that_a_change_is_lost(ends: tuple[int, int], a: int, b: int, is_right: bool) -> None:
    state = Model({"a": Member([1]), "b": Member([1])})
    commits = [made("one", 0, ends[0], *READ_THEN_WRITE), made("two", 1, ends[1], *OVERWRITE)]
    found = Model({"a": Member([a]), "b": Member([b])}).show()
    assert bool(explain([state], commits, found)) == is_right


def test_the_checker_finds_a_transaction_that_has_read_an_older_state_than_it_could() -> None:
    state = Model({"a": Member([1]), "b": Member([1])})
    found = Model({"a": Member([5]), "b": Member([2])}).show()
    later = [made("one", 2, 3, *READ_THEN_WRITE), made("two", 0, 1, *OVERWRITE)]
    assert not explain([state], later, found)


def test_the_history_tells_what_each_writer_has_done_and_where_each_order_leads() -> None:
    state = Model({"a": Member([1]), "b": Member([1])})
    commits = [made("one", 0, 3, *READ_THEN_WRITE), made("two", 1, 2, *OVERWRITE)]
    text = history([state], commits, commits, state.show())
    assert "one, from 0 to 3, committed\n    read a -> [1]\n    write b, 0, 2" in text
    assert "two, one: impossible" in text


def test_a_story_that_fails_is_told_in_a_small_version() -> None:
    story = draw_story(random.Random(1))
    assert all(len(str(each)) < len(str(story)) for each in smaller(story))
    assert len([*smaller(story)]) > 10
