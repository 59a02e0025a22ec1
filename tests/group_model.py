"""A random model of a group: workers that change and read it, journals of what they did, and a check of all of it.

Each worker writes a journal: a line before each operation and a line after it, so that one that is killed leaves an
operation whose end nobody knows. `check` is a pure function of all journals. An item's value is a number that no other
operation has written. So each row that a reader sees says which operation wrote it, and time says whether it can be:

* an operation that was refused is never seen, nor one that had not begun;
* a row is not seen if an operation that came later, and was over before the look, has replaced it or deleted the array;
* a row that was appended is not missing if nothing that came later can have replaced it;
* an operation that nobody knows the end of counts as committed from the moment at which somebody has seen it;
* a task that runs again after its commit finds that commit, unless the array was made anew, and changes nothing.

What a transaction has read, and did not change, counts as a look that began when its commit did.

Some operations of a writer meet a fate (`Fate`) at one of their writes to the store: the writer is killed there, gets
Ctrl-C, or another one changes the group meanwhile. A server may also refuse the write, or lose the answer.

The workers themselves compare the members of the pair, which are only changed together, the variables of a dataset that
xarray writes, old handles with what they have shown before, and snapshots with what their message says. A separate
group with a manifest is inside the group. It is changed and read in the same ways, and on local disks the outer group's
handles read it as well. Run as a program, this begins worker processes.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import pickle
import random
import shutil
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import dask.array as da
import fsspec
import numpy as np
import pytest
import system_calls
import xarray as xr
from clouds import BUSY, Cloud, Gate, Request, gate_to
from operations import READS, STEPS, Killed, Operations
from system_calls import NEED_ROOM

import b2array
from b2array import config, open_group
from b2array.catalog.manifest import MANIFEST
from b2array.errors import ChunkMissingError, ConflictError
from b2array.store import disk
from b2array.store.base import HiddenError
from b2array.store.local_store import LocalStore
from b2array.store.open import open_store
from b2array.xarray_io import to_b2array

PAIR = ("a", "b")
"""Always changed together, in transactions."""
SINGLES = ("c", "sub/d")
"""Changed in every way that the place allows."""
PLAIN = "e"
"""Always there: changed in place, through handles of its own, and replaced by its URL."""
NAMES = (*PAIR, *SINGLES, PLAIN)

MOUNT = "m/"
"""The prefix of the inner group's members, which have the names in `NAMES`."""
ALL_NAMES = (*NAMES, *(MOUNT + name for name in NAMES))

DATASET = "x"
"""A group with a dataset: the variables "u" and "v" along "time" have equal rows."""
SNAPSHOTS = ("s", "t")

FAR = "2999-01-01"
"""A time after that of any snapshot."""

COLUMNS, FIRST_ROWS, MOST_ROWS = 3, 3, 12

REMEMBERED = 32
"""The number of commits that an array remembers."""

FOCUSES = {
    "first commits": ["begin_group"],
    "tasks": ["store", "store_again", "run_tasks_again", "change_by_forks", "change_plain"],
    "other groups": ["rename"],
    "members": ["make", "make_by_url", "fill", "append", "delete", "carry", "change_pair", "change_together"],
}
"""The names of a few verbs each, for writers that do nothing else, and so meet often what is rare otherwise."""


class GivenUp(Exception):
    """What a task or a transaction raises that gives up."""


class NoAnswerError(Exception):
    """What a writer gets that cannot find out whether its write has happened."""


REFUSED = (ConflictError, FileExistsError, FileNotFoundError, KeyError, GivenUp)
"""What a writer gets if another one was faster, or if he gives up. Nothing has happened then."""
MET = (Killed, KeyboardInterrupt, NoAnswerError)
"""What a writer gets that has met its fate. Nobody knows what has happened then."""

LAST_STEPS = 6
"""How many of an operation's last steps meet half of all fates."""

ANSWERS = ("refused", "lost", "silent")
"""What a server may answer to a conditional write; see `Fate`."""
BY_SERVERS = {
    "refused": [(409, BUSY), "twice"],
    "lost": ["lost", "failed", "denied"],
    "silent": ["lost", "failed", "denied", "twice"],
}
"""How a server of an object store gives these answers; see `Gate`."""

FAILURES = ("failed", "full")
"""What a disk may do: one call of the system fails, or there is no room from then on."""
DISK_ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)

OPERATIONS = Operations()
"""What the threads of this process do to stores."""
CALLS = Operations()
"""The calls of the system by local stores of these threads."""

T = TypeVar("T")


@dataclass(slots=True)
class Fate:
    """What meets a writer at one of its writes to the store, the one after `moment` others.

    A writer that is "killed" changes nothing from then on. One that is "interrupted" gets Ctrl-C before the write or
    after it, and one that is "overtaken" waits while another one does something, perhaps at a read. A request may be
    "refused" although the object is as it was, or its answer "lost", so that the client repeats it and it is refused.
    A disk may have "failed" once, at a read as well, or be "full" for the rest of the operation.
    After a lost answer, the server may be "silent": then the next reads fail as well. A `gate` in front of a server
    gives these answers to its clients; without one, the store itself does.
    """

    kind: str
    moment: int
    meanwhile: Callable[[], object] = lambda: None
    is_late: bool = False
    silence: int = 1
    number: int = errno.EIO
    gate: Gate | None = None
    answer: object = None
    passed: int = 0
    has_come: bool = False
    where: str = ""

    def meet(self, _: int, name: str, call: Callable[[], Any]) -> Any:
        """Do an operation of a store, unless the fate prevents it."""
        if self.has_come and self.kind == "killed":
            raise Killed
        if self.has_come and self.kind == "silent" and name in READS and self.silence:
            self.silence -= 1
            raise OSError(errno.EIO, "the server does not answer")
        is_moment = name not in READS or self.kind == "overtaken"
        if self.kind in ANSWERS:
            is_moment = call.has_condition  # type: ignore[attr-defined]
        self.passed += is_moment
        if self.has_come or not is_moment or self.passed <= self.moment:
            return call()
        if self.is_late or self.kind in ("lost", "silent"):
            call()  # if this raises, the fate comes at the next write
        self.has_come, self.where = True, route_of(traceback.extract_stack())
        if self.kind == "killed":
            raise Killed
        if self.kind == "interrupted":
            raise KeyboardInterrupt
        if self.kind == "overtaken":
            self.meanwhile()
            return call()
        raise (FileExistsError if name == "create" else ConflictError)("an answer of the server")

    def fail(self, _: int, name: str, call: Callable[[], Any]) -> Any:
        """Do a call of the system, unless the disk fails at it."""
        is_moment = self.kind == "failed" or name in NEED_ROOM
        self.passed += is_moment
        is_over = self.has_come and self.kind == "failed"
        if is_over or not is_moment or self.passed <= self.moment:
            return call()
        self.has_come = True
        if half := getattr(call, "half", None):
            half()
        number = self.number if name in NEED_ROOM else errno.EIO
        raise OSError(number, os.strerror(number), f"in a call of {name}")

    def judge(self, _: int, request: Request) -> object:
        """Say what becomes of a request to a server."""
        if request.reads:
            is_refused = self.has_come and self.kind == "silent" and self.silence > 0
            self.silence -= is_refused
            return 403 if is_refused else None
        self.passed += request.has_condition
        if self.has_come or not request.has_condition or self.passed <= self.moment:
            return None
        self.has_come = True
        return self.answer

    def explains(self, error: BaseException) -> bool:
        """Whether an error says that nobody knows what has happened, because of this fate."""
        error = refusal_behind(error)
        if not (self.has_come and isinstance(error, OSError)):
            return False
        if self.kind in FAILURES:
            return error.errno in DISK_ERRORS
        if self.gate is None:
            return error.errno in (errno.EBUSY, errno.EIO)
        # Clients repeat what fails once, unless they may not do it. What cannot be read may be there, or not.
        is_clear = isinstance(error, FileExistsError | FileNotFoundError) and not isinstance(error, PermissionError)
        return (self.kind == "silent" or self.answer == "denied") and not is_clear

    def watch(self, task: Callable[[], object]) -> None:
        """Do something that meets the fate; raises what it raises, and AssertionError if it has swallowed Ctrl-C."""
        if self.kind in FAILURES:
            CALLS.watch(task, self.fail)
            return
        if self.gate is not None:
            self.gate.arm(self.judge)
            try:
                task()
            finally:
                self.gate.arm()
            return
        found: BaseException | None = None
        try:
            OPERATIONS.watch(task, self.meet)
        except BaseException as error:
            found = error
            raise
        finally:
            if self.has_come and self.kind == "interrupted" and not isinstance(found, KeyboardInterrupt):
                raise AssertionError(
                    f"expected that Ctrl-C reaches the user, found {found!r} after it at\n{self.where}"
                )


class Refusal:
    """What meets a reader: a server refuses some of its reads, all from a moment on, and perhaps listings."""

    def __init__(self, chance: random.Random) -> None:
        self.moment = chance.randrange(6)
        self.most = chance.choice([1, 3, 100])
        self.may_list = chance.random() < 0.5
        self.spares_manifest = False
        self.has_come = False

    def judge(self, number: int, request: Request) -> object:
        """Say what becomes of a request to the server."""
        is_spared = self.may_list if request.lists else self.spares_manifest and MANIFEST in request
        if is_spared or not self.moment <= number < self.moment + self.most:
            return None
        self.has_come = True
        return 403


def refusal_behind(error: BaseException) -> BaseException:
    """Return the refused read because of which a chunk is missing; return any other error unchanged."""
    is_refused = isinstance(error, ChunkMissingError) and isinstance(error.__cause__, HiddenError)
    return error.__cause__ if is_refused else error


@dataclass(slots=True)
class Settings:
    """What a worker needs to know."""

    url: str
    journal: str
    seed: str
    serial: int
    layout: str = "any"
    reads: bool = False
    is_local: bool = True
    threads: int = 1
    swaps: bool = True
    disk_cache: str | None = None
    verbs: list[str] = field(default_factory=list)
    """The names of what writers do; if it is empty, they do everything."""
    chance: float = 0.3
    """How likely it is that an operation meets a fate."""
    cloud: dict[str, Any] | None = None
    """The server of an object store, which gives writers strange answers: what a `Cloud` is made of."""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_list_of_files(self) -> bool:
        """Whether the files are the list of the members, so that a new file makes one."""
        return "://" not in self.url


class Journal:
    """A file that gets a line for each event, at once."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, **event: Any) -> None:
        """Add an event, with the time."""
        os.write(self._file, json.dumps({**event, "time": time.monotonic()}).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def route_of(lines: traceback.StackSummary) -> str:
    """Say through which lines an error, or a call, came."""
    return "\n".join(f"    {Path(line.filename).name}:{line.lineno} {line.name}" for line in lines)


def rows_of(array: b2array.NDArray) -> list[int]:
    """Read an array: the value of each row, whose items are equal."""
    items = array[...]
    if not (items == items[:, :1]).all():
        raise AssertionError(f"{array.url}: expected rows of equal items, found {items.tolist()}")
    return [int(value) for value in items[:, 0]]


def sent(value: T) -> T:
    """Return what another process would receive."""
    received: T = pickle.loads(pickle.dumps(value))
    return received


def dataset(value: int, is_new: bool = False) -> xr.Dataset:
    """Make one step of the dataset: one variable for dask, one in memory."""
    rows = np.full((1, COLUMNS), value)
    variables = {"u": (("time", "column"), da.from_array(rows, chunks=(1, 2))), "v": (("time", "column"), rows)}
    if is_new:
        variables = {name: (dims, rows) for name, (dims, _) in variables.items()}
    return xr.Dataset(variables, {"time": [value]})


class Worker:
    """What the writers and the readers have in common."""

    def __init__(self, settings: Settings, thread: int) -> None:
        self.settings = settings
        self.random = random.Random(f"{settings.seed} {settings.serial} {thread}")
        self.thread = thread
        self.me = settings.serial * 10 + thread
        self.options = settings.options
        self.at_end = ExitStack()
        self.journal = Journal(f"{settings.journal}/{self.me}.jsonl")
        self.at_end.callback(self.journal.close)
        self.count = 0
        self.gate: Gate | None = None
        if settings.cloud is not None:
            self.stand_before(Cloud(**settings.cloud))

    def stand_before(self, cloud: Cloud) -> None:
        """Reach the server through a gate, which this worker alone passes."""
        self.gate, endpoint = self.at_end.enter_context(gate_to(cloud))
        self.options = cloud.through(endpoint)

    def open(self, mode: str = "r", *, within: str = "", follow: bool = False) -> b2array.Group:
        """Open the group, or the one inside it."""
        return open_group(self.url(within), mode, follow=follow, storage_options=self.options)

    def url(self, within: str, name: str = "") -> str:
        """Return the URL of the group, of the one inside it, or of a member of either."""
        group = f"{self.settings.url}/{within}".removesuffix("/")
        return f"{group}/{name}.b2nd" if name else group

    def chosen(self) -> str:
        """Choose the group, or the one inside it."""
        return MOUNT if self.random.random() < 0.3 else ""

    def run(self) -> None:
        """Work until it is time to stop."""
        stop = told_stop(self.settings)
        with self.at_end:
            while time.monotonic() < stop:
                self.try_step()

    def try_step(self) -> None:
        """Do one thing, and note an error that must not be."""
        try:
            self.step()
        except BaseException as error:  # noqa: BLE001 - the checker raises it
            where = route_of(traceback.extract_tb((error.__cause__ or error).__traceback__))
            self.journal.note(event="wrong", text=f"{type(error).__name__}: {error}", where=where)

    def step(self) -> None:
        """Do one thing."""
        raise NotImplementedError


class Writer(Worker):
    """Changes the group in random ways."""

    def __init__(self, settings: Settings, thread: int) -> None:
        super().__init__(settings, thread)
        self.within = ""
        self.groups: dict[str, b2array.Group] = {}
        self.arrays: dict[str, b2array.NDArray] = {}
        self.stored: list[tuple[str, int, Callable[[], object]]] = []
        self.has_locks = open_store(settings.url, storage_options=self.options).can.lock
        self.fates = fates_of(settings, has_locks=self.has_locks)
        self.most: Counter[tuple[str, str]] = Counter()
        self.second: Writer | None = None
        self.met = ""
        self.alone = (self.begin_group, self.rename, self.run_tasks_again)
        self.together = (self.change_pair, self.change_together, self.carry, self.replace_all, self.derive)

    def step(self) -> None:
        self.within = self.chosen()
        if self.within not in self.groups or self.random.random() < 0.5:
            self.groups, self.arrays = {self.within: self.open("r+", within=self.within)}, {}
        else:
            self.group.refresh()
        verbs: list[tuple[int, Callable[[], None]]] = [
            (8, self.change_pair),
            (3, self.change_together),
            (3, self.make),
            (4, self.fill),
            (5, self.append),
            (2, self.delete),
            (3, self.carry),
            (2, self.change_plain),
            (1, self.clean),
            (1, self.replace_all),
            (3, self.derive),
            (3, self.change_by_forks),
            (3, self.change_pair_by_forks),
            (4, self.store),
            (3, self.store_again),
            (8, self.begin_group),
            (1, self.run_tasks_again),
            (2, self.keep),
            (2, self.keep_unread),
            (2, self.go_back),
            (1, self.drop),
            (4, self.make_by_url),
        ]
        if self.settings.is_list_of_files:
            verbs.append((6, self.rename))
        if not self.within:
            verbs += [(3, self.extend_dataset), (3, self.change_dataset)]
        if self.settings.verbs:
            verbs = [(weight, verb) for weight, verb in verbs if verb.__name__ in self.settings.verbs]
        verb = self.random.choices([verb for _, verb in verbs], [weight for weight, _ in verbs])[0]
        refused = ConflictError if verb in self.together else REFUSED
        op = verb.__name__ + " inside" * bool(self.within)
        self.begin(op)
        self.met = ""
        try:
            if verb in self.alone:
                verb()
            else:
                self.meet_fate(verb, op, self.let_another_act)
        except refused as error:
            self.journal.note(event="end", outcome="refused", error=f"{type(error).__name__}: {error}"[:300])
            self.groups = {}
        except BaseException as error:
            self.journal.note(event="end", outcome="unknown")
            self.groups, self.arrays = {}, {}
            if isinstance(error, Killed):
                self.stored = []
            if not isinstance(error, MET):
                raise
        else:
            self.journal.note(event="end", outcome="ok")
            if self.met in ANSWERS:
                self.require_order()

    def require_order(self) -> None:
        """Check that the group has all files which it names: what was reported as committed is there."""
        report = b2array.verify(self.url(self.within), storage_options=self.options)
        if not report.ok:
            raise AssertionError(f"expected a group in order after a commit, found {report}")

    def begin(self, op: str) -> None:
        """Begin an operation, with a value that no other one writes."""
        self.count += 1
        self.value = self.me * 10**6 + self.count
        self.journal.note(event="begin", op=op, value=self.value)

    # What an operation meets.

    def meet_fate(
        self, task: Callable[[], object], op: str, meanwhile: Callable[[], object], chance: float | None = None
    ) -> None:
        """Do something that may meet a fate, and note in `met` which one has come.

        Raises what it raises, or `NoAnswerError` if the server's answer explains why nobody knows what has happened.
        """
        if not self.fates or self.random.random() > (self.settings.chance if chance is None else chance):
            task()
            return
        kind = self.random.choice(self.fates)
        most = self.most[op, kind] or LAST_STEPS
        # A commit, and what follows it, are among the last steps.
        first = max(0, most - LAST_STEPS) if self.random.random() < 0.5 else 0
        fate = Fate(kind, self.random.randrange(first, most), meanwhile)
        fate.is_late = kind == "interrupted" and self.random.random() < 0.5
        if kind in ANSWERS and self.gate is not None:
            fate.gate, fate.answer = self.gate, self.random.choice(BY_SERVERS[kind])
            fate.silence = self.random.choice([1, 3, 100])
        durable = "off"
        if kind in FAILURES:
            durable = self.random.choice(["off", "ordered", "full"])
            fate.number = self.random.choice(DISK_ERRORS if kind == "failed" else DISK_ERRORS[1:])
        try:
            with config.using(durable=durable):
                fate.watch(task)
        except (OSError, ChunkMissingError) as error:
            if fate.explains(error):
                raise NoAnswerError from error
            raise
        finally:
            self.most[op, kind] = max(self.most[op, kind], fate.passed)
            if fate.has_come:
                self.met = kind
                self.journal.note(event=f"fate {kind}")

    def let_another_act(self) -> None:
        """Take a step of another writer, in this thread."""
        if self.second is None:
            self.second = Writer(replace(self.settings, cloud=None), self.thread + 5)
            self.second.fates = []
            self.at_end.push(self.second.at_end)
        self.second.try_step()

    @property
    def group(self) -> b2array.Group:
        """The group that this step changes."""
        return self.groups[self.within]

    # Each verb tells what it is about to change before anybody can see it: {name: (kind, rows before)}.

    def will(self, name: str, kind: str, before: Sequence[int] | None = None, source: str = "") -> None:
        source = source and self.within + source
        self.journal.note(event="will", name=self.within + name, kind=kind, before=before, source=source)

    def layout(self) -> Any:
        wanted = self.settings.layout
        return self.random.choice(["contiguous", "sparse"]) if wanted == "any" else wanted

    def rows(self) -> np.ndarray:
        return np.full((FIRST_ROWS, COLUMNS), self.value)

    def new(self, group: b2array.Group, name: str, *, overwrite: bool = False) -> None:
        self.will(name, "make")
        group.create(name, data=self.rows(), chunks=(2, 2), layout=self.layout(), overwrite=overwrite)

    def remove(self, group: b2array.Group, name: str) -> None:
        self.will(name, "delete")
        del group[name]

    def fill_in(self, array: b2array.NDArray, name: str) -> None:
        self.will(name, "set")
        array[...] = self.value

    def append_to(self, array: b2array.NDArray, name: str) -> None:
        self.will(name, "append")
        array.append(np.full((1, COLUMNS), self.value))

    def vary(self, group: b2array.Group, name: str, action: str) -> None:
        """Change one member inside a transaction."""
        if action in ("delete", "again"):
            self.remove(group, name)
        if action in ("make", "again"):
            self.new(group, name)
        if action == "fill":
            self.fill_in(group[name], name)
        if action == "grow":
            array = group[name]
            if array.shape[0] < MOST_ROWS:
                self.append_to(array, name)
            else:
                self.fill_in(array, name)

    def change_pair(self) -> None:
        with self.group.transaction() as changes:
            there = [name in changes for name in PAIR]
            if there[0] != there[1]:
                raise AssertionError(f"expected both of the pair or none, found {there}")
            action = self.random.choice(["fill", "grow", "grow", "again", "delete"] if there[0] else ["make"])
            for name in PAIR:
                self.vary(changes, name, action)
                if name in changes:
                    changes[name].attrs["value"] = self.value

    def change_together(self) -> None:
        """Change several members in a transaction, each in another way."""
        with self.group.transaction() as changes:
            for name in SINGLES:
                actions = ["fill", "grow", "again", "delete"] if name in changes else ["make"]
                self.vary(changes, name, self.random.choice(actions))

    def single(self) -> str:
        return self.random.choice(SINGLES)

    def make(self) -> None:
        self.new(self.group, self.single(), overwrite=self.random.random() < 0.7)

    def make_by_url(self) -> None:
        """Make or replace an array by its URL."""
        name = self.random.choice([*SINGLES, PLAIN])
        self.will(name, "make")
        b2array.asarray(
            self.rows(),
            url=self.url(self.within, name),
            chunks=(2, 2),
            layout=self.layout(),
            overwrite=name == PLAIN or self.random.random() < 0.7,
            storage_options=self.options,
        )

    def delete(self) -> None:
        self.remove(self.group, self.single())

    def array(self, name: str) -> b2array.NDArray:
        """Open an array for writing: through a group around it, by its own URL, or the handle of a step before."""
        full = self.within + name
        way = self.random.choice(["group", "url", "old", "outer"])
        if way == "old" and full in self.arrays:
            array = self.arrays[full]
            array.refresh()
        elif way == "url":
            array = b2array.open(self.url(self.within, name), "r+", storage_options=self.options)
        elif way == "outer" and self.within and self.settings.is_list_of_files:
            array = self.open("r+")[full]
        else:
            array = self.group[name]
        self.arrays[full] = array
        return array

    def fill(self) -> None:
        name = self.single()
        self.fill_in(self.array(name), name)

    def append(self) -> None:
        name = self.single()
        self._grow(self.array(name), name)

    def _grow(self, array: b2array.NDArray, name: str) -> None:
        if array.shape[0] < MOST_ROWS:
            self.append_to(array, name)
        else:
            self.fill_in(array, name)

    def change_plain(self) -> None:
        self._grow(self.array(PLAIN), PLAIN)

    # What a transaction reads and does not change.

    def derive(self) -> None:
        """Read some members and change another one: what was read is still there when the change is committed."""
        with self.group.transaction() as changes:
            found = {name: rows_of(changes[name]) for name in SINGLES if name in changes}
            time.sleep(self.random.choice([0, 0.02]))
            self.fill_in(changes[PLAIN], PLAIN)
            begin = time.monotonic()
        for name, rows in found.items():
            self.journal.note(event="look", name=self.within + name, rows=rows, begin=begin)

    # Forks and tasks. Some fail, some run twice.

    def perhaps_give_up(self) -> None:
        if self.random.random() < 0.4:
            raise GivenUp

    def change_by_forks(self) -> None:
        """Change an array by forks in a separate transaction."""
        array = self.array(PLAIN)
        self.will(PLAIN, "set")
        with array.transaction() as changes:
            forks = [sent(changes.fork()) for _ in range(2)]
            for fork in forks:
                fork[...] = self.value
            if self.random.random() < 0.5:
                forks.append(sent(forks[0]))
            changes.merge(*map(sent, forks))
            self.perhaps_give_up()

    def change_pair_by_forks(self) -> None:
        """Change the pair by forks of the group; the rows of the one that is not there are not changed."""
        with self.group.transaction() as changes:
            if not all(name in changes for name in PAIR):
                return
            fork = sent(changes.fork())
            for name in PAIR:
                self.fill_in(fork[name], name)
                fork[name].attrs["value"] = self.value
            changes.merge(sent(fork))
            self.perhaps_give_up()

    def store(self) -> None:
        """Write by tasks of dask. A task may fail, and all of it may be computed twice."""
        name = self.random.choice([PLAIN, *SINGLES])
        array = self.array(name)
        fails, scheduler = self.random.random() < 0.3, self.random.choice(["sync", "threads"])
        value = self.value

        def task(block: np.ndarray, block_info: Any = None) -> np.ndarray:
            if fails and block_info[0]["chunk-location"] == (1, 0):
                raise GivenUp
            return block + value

        zeros = da.zeros(array.shape, chunks=array.chunks, dtype=array.dtype)
        values = zeros.map_blocks(task, dtype=array.dtype, meta=np.empty((0, 0), array.dtype))
        self.will(name, "set")
        if self.random.random() < 0.3:
            array.store(values, scheduler=scheduler)
            return
        write = array.store(values, compute=False)
        write.compute(scheduler=scheduler)
        self.stored = [*self.stored[-3:], (self.within + name, value, partial(write.compute, scheduler=scheduler))]
        self.journal.note(event="done")
        if self.random.random() < 0.7:  # other tasks follow
            self.journal.note(event="end", outcome="ok")
            self.begin("store once more")
            self.will(name, "set")
            array.store(zeros + self.value, scheduler=scheduler)
        self.repeat(*self.stored[-1])

    def store_again(self) -> None:
        """Run tasks again that have committed, maybe long ago, as dask does if a worker is lost."""
        if self.stored:
            self.repeat(*self.random.choice(self.stored))

    def repeat(self, name: str, value: int, compute: Callable[[], object]) -> None:
        """Run tasks again, and note whether they were refused."""
        refusal = ""
        try:
            compute()
        except REFUSED as error:
            refusal = f"{type(error).__name__}: {error}"[:300]
        self.journal.note(event="repeat", name=name, value=value, refusal=refusal)

    def run_tasks_again(self) -> None:
        """Let tasks write to an array of this worker alone, and run some of them again: that changes nothing."""
        url, options = f"{self.settings.url}-tasks-of-{self.me}-{self.count}.b2nd", self.options
        array = b2array.asarray(self.rows(), url=url, chunks=(2, 2), layout=self.layout(), storage_options=options)
        writes = []
        for value in range(3):
            array.refresh()
            writes.append(array.store(da.full(array.shape, value, chunks=array.chunks), compute=False))
            for write in (writes[-1], self.random.choice(writes)):
                try:
                    write.compute(scheduler="sync")
                except ConflictError as error:
                    raise AssertionError(f"{url}: expected that tasks find their commit, found {error}") from error
        if rows_of(b2array.open(url, storage_options=options)) != [2] * FIRST_ROWS:
            raise AssertionError(f"{url}: expected that tasks which run again change nothing")

    # Snapshots, whose message says what is in them.

    def keep(self) -> None:
        with self.group.transaction() as changes:
            rows = {name: rows_of(changes[name]) for name in NAMES if name in changes}
            changes.snapshot(self.random.choice(SNAPSHOTS), json.dumps(rows), replace=True)

    def keep_unread(self) -> None:
        """Keep what is there, whatever that is: nobody is in the way of this."""
        self.group.snapshot(self.random.choice(SNAPSHOTS), json.dumps(None), replace=True)

    def drop(self) -> None:
        self.group.drop_snapshot(self.random.choice(SNAPSHOTS))

    def go_back(self) -> None:
        """Restore a snapshot, and append a row to each member, so that they can be told from those of before."""
        with self.group.transaction() as changes:
            changes.restore(self.random.choice(SNAPSHOTS))
            for name in NAMES:
                if name not in changes:
                    self.will(name, "delete")
                    continue
                self.will(name, "carried", rows_of(changes[name]))
                changes[name].append(np.full((1, COLUMNS), self.value))
            for name in PAIR:
                if name in changes:
                    changes[name].attrs["value"] = self.value

    # A dataset, by xarray.

    def extend_dataset(self) -> None:
        length = self.group[DATASET]["time"].shape[0]
        if length > 3 * MOST_ROWS:
            self.change_dataset()
        else:
            to_b2array(dataset(self.value), group=DATASET, append_dim="time", check_index="off", **self.target())

    def change_dataset(self) -> None:
        at = self.random.randrange(self.group[DATASET]["time"].shape[0])
        step = dataset(self.value).drop_vars("time")
        try:
            to_b2array(step, group=DATASET, region={"time": slice(at, at + 1)}, **self.target())
        except ValueError as error:
            if "is not inside" not in str(error):
                raise
            # Another worker has restored a snapshot, in which the dataset is shorter.
            raise ConflictError(f"{DATASET} has no time {at} any more") from error

    def target(self) -> dict[str, Any]:
        chosen = self.random.choice(["sync", "threads"])
        return {"url": self.settings.url, "scheduler": chosen, "storage_options": self.options}

    # Groups of this worker alone: one is new, another one is renamed.

    def begin_group(self) -> None:
        """Make arrays by their URLs, and then change their group, which may meet a fate.

        What the group no longer has cannot be read or written from the moment at which the group does not show it.
        """
        begun = NewGroup(f"{self.settings.url}-new-of-{self.me}-{self.count}", self.options, self.value)
        begun.make(self.rows(), self.layout())
        if self.random.random() < 0.5:  # later, there is a manifest, which lists a member that it has not adopted
            begun.open("r+")["y"][...] = 0
        begun.open_late()
        action = self.random.choice(["delete", "move", "replace"])
        change = partial(begun.change, action, self.layout())
        try:
            self.meet_fate(change, f"begin_group {action}", begun.write_late, chance=0.8)
        except ConflictError as error:
            if not begun.late_is_written and self.met not in ANSWERS:
                raise AssertionError(f"{begun.url}: expected that nobody is faster, found {error}") from error
            begun.require(begun.before())
        except MET:
            if not self.settings.is_list_of_files and self.has_locks:
                return  # whoever reads memory by a URL may see what was not published
            begun.require(begun.before(), begun.after(action))
        else:
            begun.require(begun.after(action))
            begun.write_late()
            begun.require(begun.after(action), is_clean=self.met in ("", "overtaken"))
        if self.random.random() < 0.3:
            found = begun.found()
            b2array.vacuum(begun.url, grace=0, storage_options=begun.options)
            begun.require(found, is_clean=True)

    def rename(self) -> None:
        """Rename a group, and change it through a handle of before: that is refused, and nothing comes of it."""
        url, away = f"{self.settings.url}-of-{self.me}", f"{self.settings.url}-of-{self.me}-away"
        if Path(away).exists():  # a worker with this number was killed
            shutil.rmtree(url, ignore_errors=True)
            Path(away).rename(url)
        group = open_group(url, "a")
        group.create("x", data=self.rows(), chunks=(1, 2), layout=self.layout(), overwrite=True)
        if self.random.random() < 0.5:
            with group.transaction() as changes:
                changes["x"][...] = self.value
        array, new = group["x"], self.rows()
        other = self.random.random() < 0.3

        def replace() -> None:
            """Rename the group, and perhaps make another one in its place."""
            Path(url).rename(away)
            if other:
                open_group(url, "w")["y"] = new

        changes_of_group: list[Callable[[], object]] = [
            lambda: array.__setitem__(..., 0),
            lambda: group.attrs.update(k=1),
            lambda: group.__setitem__("n", new),
            lambda: group.create("n", data=new, layout=self.layout()),
            lambda: group.create_group("sub"),
            lambda: group.require_array("sub/n", (3,), "f8"),
            lambda: group.__delitem__("x"),
            lambda: group.snapshot("s"),
            lambda: group.consolidate(),
        ]
        try:
            with suppress(ConflictError, FileNotFoundError):
                if self.random.random() < 0.3:
                    with group.transaction() as changes:
                        changes["n"] = new
                        replace()
                else:
                    replace()
                    self.random.choice(changes_of_group)()
                raise AssertionError(f"{url}: expected that a change of a renamed group is refused")
            found = [*open_group(url)] if Path(url).exists() else None
            if found != (["y"] if other else None):
                raise AssertionError(f"{url}: expected no change of a renamed group in its old place, found {found}")
        finally:
            shutil.rmtree(url, ignore_errors=True)
            Path(away).rename(url)
        if rows_of(open_group(url)["x"]) != [self.value] * FIRST_ROWS:
            raise AssertionError(f"{url}: expected that a refused change leaves the items")

    def carry(self) -> None:
        """Move or copy a member to another name, and append a row, so that the copy can be told from its source."""
        source, target = self.random.sample(SINGLES, 2)
        moved = self.random.random() < 0.5
        with self.group.transaction() as changes:
            if source not in changes:
                return
            if target in changes:
                self.remove(changes, target)
            if moved:
                changes.move(source, target)
                self.will(source, "delete")
            else:
                changes.copy(source, changes, target)
            before = rows_of(changes[target])
            self.will(target, "carried", before, source if moved else "")
            changes[target].append(np.full((1, COLUMNS), self.value))

    def clean(self) -> None:
        verb = self.random.choice([b2array.vacuum, b2array.repack, b2array.verify, b2array.Group.consolidate])
        if verb is b2array.Group.consolidate:
            self.group.consolidate()
        elif verb is b2array.repack:
            url = self.url(self.within, self.random.choice(NAMES))
            b2array.repack(url, storage_options=self.options)
        else:
            verb(self.url(self.within), storage_options=self.options)

    def replace_all(self) -> None:
        """Replace the pair and one of the others as a whole group is replaced; what is outside of it stays."""
        with self.group.transaction() as changes:
            for name in (*PAIR, *SINGLES):
                if name in changes:
                    self.remove(changes, name)
            for name in PAIR:
                self.new(changes, name)
                changes[name].attrs["value"] = self.value
            self.new(changes, self.single())


class NewGroup:
    """A group of one worker, with arrays that were made by their URLs, and a writer that opened one of them before."""

    def __init__(self, url: str, options: dict[str, Any], value: int) -> None:
        self.url, self.options, self.value = url, options, value
        self.late_is_written = False

    def open(self, mode: str = "r") -> b2array.Group:
        """Open the group anew."""
        return open_group(self.url, mode, storage_options=self.options)

    def by_url(self, path: str, mode: str = "r") -> b2array.NDArray:
        """Open a member by its URL."""
        return b2array.open(f"{self.url}/{path}", mode, storage_options=self.options)

    def make(self, rows: np.ndarray, layout: Any) -> None:
        """Make the arrays by their URLs."""
        for name in "xy":
            place = f"{self.url}/{name}.b2nd"
            b2array.asarray(rows, url=place, chunks=(2, 2), layout=layout, storage_options=self.options)

    def open_late(self) -> None:
        """Open the array that will be changed, for a write that comes later."""
        self.late = self.by_url("x.b2nd", "r+")

    def write_late(self) -> None:
        """Write to the array that was opened before; that is refused if the group does not show the array any more."""
        is_over = self.found() != self.before()
        with suppress(ConflictError, FileNotFoundError):
            self.late[...] = 0
            self.late_is_written = True
            if is_over:
                raise AssertionError(f"{self.late.url}: expected that a change is refused, as the array is gone")

    def change(self, action: str, layout: Any) -> None:
        """Change the group for the first time."""
        group = self.open("r+")
        if action == "delete":
            del group["x"]
        elif action == "move":
            group.move("x", "z")
        else:
            rows = np.full((FIRST_ROWS, COLUMNS), -self.value)
            group.create("x", data=rows, chunks=(2, 2), layout=layout, overwrite=True)

    def before(self) -> dict[str, int]:
        """Return what the group has before the change: the value of each array."""
        return {"x": 0 if self.late_is_written else self.value}

    def after(self, action: str) -> dict[str, int]:
        """Return what the group has after the change."""
        (value,) = self.before().values()
        return {"delete": {}, "move": {"z": value}, "replace": {"x": -self.value}}[action]

    def found(self) -> dict[str, int]:
        """Return what the group has now."""
        group = self.open()
        group.refresh()
        return {name: rows_of(group[name])[0] for name in "xz" if name in group}

    def require(self, *allowed: dict[str, int], is_clean: bool = False) -> None:
        """Compare what the group has, and what can be read by URLs; if it `is_clean`, there are no other frames."""
        group = self.open("r+")
        _ = group["y"]  # as the next writer, complete what a killed one has begun
        found = self.found()
        if found not in allowed:
            raise AssertionError(f"{self.url}: expected one of {allowed}, found {found}")
        paths = group._home.members()
        places = {f"{name}{ending}": name for name in "xz" for ending in (".b2nd", ".b2f")}
        for path, name in places.items():
            with suppress(FileNotFoundError):
                shown = rows_of(self.by_url(path))[0]
                if shown != found.get(name):
                    raise AssertionError(f"{self.url}/{path}: expected {found.get(name)}, found {shown}")
        expected = {paths[name] for name in found}
        files = open_store(self.url, storage_options=self.options).walk()
        files = {path.removesuffix("/chunks.b2frame") for path in files}
        if is_clean and files & places.keys() != expected:
            raise AssertionError(f"{self.url}: expected the frames {expected}, found {files & places.keys()}")
        for path in expected:
            self.by_url(path)


class Reader(Worker):
    """Looks at the group in random ways."""

    def __init__(self, settings: Settings, thread: int) -> None:
        super().__init__(settings, thread)
        self.old: list[tuple[str, list[int], b2array.NDArray]] = []
        self.kept: dict[tuple[str, str, str], dict[str, list[int]]] = {}
        self.all_names = ALL_NAMES if settings.is_list_of_files else NAMES
        """What the outer group shows."""

    def step(self) -> None:
        looks = [self.look, self.look, self.look_slowly, self.look_back, self.look_by_url, self.look_at_all]
        looks += [self.look_at_a_snapshot, self.look_at_a_time, self.look_at_the_dataset]
        look = self.random.choice(looks)
        refusal = Refusal(self.random)
        # By its URL, a member shows its published state to readers who may not read the manifest.
        refusal.spares_manifest = look == self.look_by_url
        if self.gate is not None and self.random.random() < 0.3:
            self.gate.arm(refusal.judge)
        try:
            look()
        except ConflictError:
            self.journal.note(event="conflict")
        except (PermissionError, ChunkMissingError) as error:
            if not (refusal.has_come and isinstance(refusal_behind(error), PermissionError)):
                raise
            self.journal.note(event="refusal")
        finally:
            if self.gate is not None:
                self.gate.arm()

    def seen(self, name: str, rows: list[int] | None, begin: float) -> None:
        self.journal.note(event="look", name=name, rows=rows, begin=begin)

    def read(self, group: b2array.Group, name: str, within: str, begin: float) -> list[int] | None:
        """Read one member, and keep its handle."""
        try:
            array = group[name]
        except KeyError:
            rows = None
        else:
            rows = rows_of(array)
            value = array.attrs.get("value", rows[-1])
            if value != rows[-1]:
                raise AssertionError(f"{name}: expected the attribute {rows[-1]}, as the items are, found {value}")
            self.old = [*self.old[-7:], (within + name, rows, array)]
        self.seen(within + name, rows, begin)
        return rows

    def look(self) -> None:
        self._look(0)

    def look_slowly(self) -> None:
        """Let the handle become old between one member and the next."""
        self._look(self.random.uniform(0, 0.1))

    def _look(self, pause: float) -> None:
        within = self.chosen()
        group, begin = self.open(within=within), time.monotonic()
        group.refresh()
        found = {}
        names = NAMES if within else self.all_names
        for name in self.random.sample(names, len(names)):
            found[name] = self.read(group, name, within, begin)
            time.sleep(pause)
        self.compare(found)

    def compare(self, found: Mapping[str, list[int] | None]) -> None:
        for prefix in ("", MOUNT):
            first, second = (found.get(prefix + name) for name in PAIR)
            if first != second:
                raise AssertionError(f"expected the pair to be equal, found {first} and {second}")

    def look_at_all(self) -> None:
        within = self.chosen()
        group, begin = self.open(within=within), time.monotonic()
        group.refresh()
        all_names = NAMES if within else self.all_names
        names = [name for name in all_names if name in group]
        read = group.read_many(dict.fromkeys(names, Ellipsis)) if names else {}
        found = {name: [int(value) for value in read[name][:, 0]] if name in read else None for name in all_names}
        for name, rows in found.items():
            self.seen(within + name, rows, begin)
        self.compare(found)

    def look_back(self) -> None:
        """Read old handles again: they show what they have shown, or say that it is gone."""
        for name, rows, array in self.old:
            try:
                now = rows_of(array)
            except ConflictError:
                self.journal.note(event="conflict")
            else:
                self.journal.note(event="again")
                if now != rows:
                    raise AssertionError(f"{name}: expected that an old handle shows {rows}, found {now}")

    def look_at_a_snapshot(self) -> None:
        """Compare a snapshot with its message, unless it is replaced meanwhile."""
        within = self.chosen()
        name, group = self.random.choice(SNAPSHOTS), self.open(within=within)
        before = {each.name: each for each in group.snapshots}.get(name)
        if before is None:
            return
        try:
            then = open_group(self.url(within), at=name, storage_options=self.options)
            found = {each: rows_of(then[each]) for each in NAMES if each in then}
            if any(each.startswith(MOUNT) for each in then):
                raise AssertionError(f"expected a snapshot without the group inside, found {[*then]}")
        except (ConflictError, KeyError, FileNotFoundError):
            self.journal.note(event="conflict")
            return
        group.refresh()
        after = {each.name: each for each in group.snapshots}.get(name)
        if after is not None and (after.time, after.message) == (before.time, before.message):
            self.journal.note(event="snapshot")
            compare_with_message(before.message, found)
            self.compare({each: found.get(each) for each in PAIR})
            known = self.kept.setdefault((within, name, str(before.time)), found)
            if found != known:
                raise AssertionError(f"expected that the snapshot {name} shows {known}, as before, found {found}")

    def look_at_a_time(self) -> None:
        """Open the latest snapshot, whatever its name is: a writer may drop it meanwhile."""
        url = self.url(self.chosen())
        try:
            then = open_group(url, at=FAR, storage_options=self.options)
            found = {name: rows_of(then[name]) for name in NAMES if name in then}
        except ConflictError:
            self.journal.note(event="conflict")
        except KeyError as error:
            if FAR not in str(error):  # there is no snapshot at all
                raise AssertionError(f"expected no name that nobody gave, found {error}") from error
        else:
            self.journal.note(event="time")
            self.compare({each: found.get(each) for each in PAIR})

    def look_at_the_dataset(self) -> None:
        group = self.open(follow=False)
        found = {name: group[f"{DATASET}/{name}"] for name in ("time", "u", "v")}
        compare_variables(rows_of(found["u"]), rows_of(found["v"]), found["time"].shape[0])
        self.journal.note(event="dataset")

    def look_by_url(self) -> None:
        """Read a member by its own URL. Only servers show each commit at once.

        There, a writer may still remove the published index of an array that another one has made again meanwhile.
        """
        name, begin = self.random.choice(ALL_NAMES), time.monotonic()
        try:
            array = b2array.open(self.url("", name), storage_options=self.options)
            rows = rows_of(array)
        except (FileNotFoundError, ConflictError):
            # A refused read as well: `HiddenError` is a FileNotFoundError.
            return
        self.journal.note(event="by url")
        if array._handle.revision.owner.lists_revisions:
            self.seen(name, rows, begin)


def compare_with_message(message: str, found: Mapping[str, list[int] | None]) -> None:
    """Compare a snapshot with what its message says."""
    expected = json.loads(message)
    if expected is not None and found != expected:
        raise AssertionError(f"expected a snapshot of {expected}, found {found}")


def compare_variables(u: list[int], v: list[int], length: int) -> None:
    """Compare the variables of the dataset."""
    if u != v or len(u) != length:
        raise AssertionError(f"expected equal variables of {length} steps, found {u} and {v}")


def told_stop(settings: Settings) -> float:
    """Wait until everybody may begin, and return the time when all stop."""
    told = Path(settings.journal, "stop")
    while not told.exists():
        time.sleep(0.005)
    return float(told.read_text())


def let_begin(settings: Settings, seconds: float, workers: int) -> float:
    """Wait until all workers are ready, and let them begin; return the time when all stop."""
    folder = Path(settings.journal)
    while len(list(folder.glob("*.jsonl"))) < workers:
        time.sleep(0.01)
    stop = time.monotonic() + seconds
    (folder / "stop.part").write_text(str(stop))
    (folder / "stop.part").rename(folder / "stop")
    return stop


def let_swaps_take_steps() -> None:
    """Behave as a file system that does not swap names, and take time between one step and the next."""
    move_here = LocalStore.move_here

    def slowly(store: LocalStore, other: LocalStore, **options: Any) -> None:
        move_here(store, other, **options)
        time.sleep(0.02)

    disk.swap = lambda *_: False
    LocalStore.move_here = slowly  # type: ignore[method-assign]


def let_clock_differ() -> None:
    """Set the clock of this process back or forward, by up to a day, as clocks of computers may differ."""
    offset = random.Random(os.getpid()).choice([-90_000, -3_700, -3, 0, 3, 3_700, 90_000])
    now, now_in_ns = time.time, time.time_ns
    time.time, time.time_ns = lambda: now() + offset, lambda: now_in_ns() + offset * 10**9


def fates_of(settings: Settings, *, has_locks: bool) -> list[str]:
    """Return what may meet a writer. Memory lasts no longer than its process, and no server is asked for a file."""
    if has_locks:
        return ["killed", "interrupted", *FAILURES] if settings.is_list_of_files else ["interrupted"]
    # The requests of servers are few, and so are their strange answers.
    return ["killed", "interrupted", "overtaken", *ANSWERS * (1 if settings.cloud is None else 3)]


def let_clients_hurry() -> None:
    """Let clients of object stores repeat requests at once, and not write about it."""
    logging.disable(logging.CRITICAL)
    sleep = asyncio.sleep
    asyncio.sleep = lambda seconds, *args: sleep(min(seconds, 0.02), *args)


def listen(settings: Settings, patch: pytest.MonkeyPatch) -> None:
    """Let all that happens in the store of a group run through `OPERATIONS`."""
    store = open_store(settings.url, storage_options=settings.options)
    OPERATIONS.listen(type(store), patch, (*STEPS, *READS))
    if settings.is_list_of_files:
        system_calls.listen(CALLS.run, patch)


def work(settings: Settings) -> None:
    """Do what one process does, or one thread of a process that is shared."""
    config.durable = "off"
    if not settings.swaps:
        let_swaps_take_steps()
    if settings.cloud is not None:
        let_clients_hurry()
    config.disk_cache = settings.disk_cache
    kind = Reader if settings.reads else Writer
    workers = [kind(settings, thread) for thread in range(settings.threads)]
    threads = [threading.Thread(target=worker.run) for worker in workers[1:]]
    for thread in threads:
        thread.start()
    workers[0].run()
    for thread in threads:
        thread.join()


# The checker.


@dataclass(slots=True)
class Change:
    """What one operation did to one name. `seen` is when it was certain, if ever, and `end` when its writer went on."""

    name: str
    kind: str
    value: int
    begin: float
    before: list[int] | None = None
    source: str = ""
    outcome: str = "unknown"
    seen: float = float("inf")
    end: float = float("inf")

    @property
    def replaces(self) -> bool:
        """Whether the array has nothing of before, or is gone."""
        return self.kind != "append"


@dataclass(slots=True)
class Look:
    """What one name had: rows, or None if it was not there. It was asked for and answered at these times."""

    name: str
    rows: list[int] | None
    begin: float
    end: float


@dataclass(slots=True)
class Repeat:
    """What tasks got that ran again after their commit: the reason of a refusal, or nothing."""

    name: str
    value: int
    refusal: str
    end: float


@dataclass(slots=True)
class History:
    """What all journals say."""

    changes: list[Change] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def read_history(journals: str | Path) -> History:
    """Read the journals of all workers."""
    history = History()
    for path in sorted(Path(journals).glob("*.jsonl")):
        operation: dict[str, Change] = {}
        started: dict[str, Any] = {}
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):  # killed
                continue
            event = json.loads(line)
            kind = event.pop("event")
            if kind == "begin":
                history.changes += operation.values()
                operation, started = {}, event
            elif kind == "will":
                # If an operation deletes an array and makes it again, only the second is to be seen.
                operation[event["name"]] = Change(
                    event["name"], event["kind"], started["value"], started["time"], event["before"], event["source"]
                )
            elif kind == "done":
                for change in operation.values():
                    change.seen = event["time"]
            elif kind == "end":
                history.counts[f"{started['op']} {event['outcome']}"] += 1
                _end(operation.values(), event["outcome"], event["time"])
            else:
                _note(history, path.name, kind, event)
        history.changes += operation.values()
    return history


def _end(changes: Iterable[Change], outcome: str, time: float) -> None:
    """Let changes have an outcome. Committed ones were certain at this time at the latest."""
    for change in changes:
        change.outcome, change.end = outcome, time
        if outcome == "ok":
            change.seen = min(change.seen, time)


def _note(history: History, journal: str, kind: str, event: Mapping[str, Any]) -> None:
    """Add an event that is no part of an operation."""
    if kind == "look":
        history.looks.append(Look(event["name"], event["rows"], event["begin"], event["time"]))
    elif kind == "repeat":
        history.repeats.append(Repeat(event["name"], event["value"], event["refusal"], event["time"]))
        kind = "refused repeat" if event["refusal"] else kind
    elif kind == "wrong":
        history.wrong.append(f"{journal}: {event['text']}\n{event['where']}")
        return
    history.counts[kind] += 1


def check(history: History) -> list[str]:
    """Return all that cannot be, as text."""
    return [*history.wrong, *_contradictions(history)]


def _contradictions(history: History) -> Iterator[str]:
    by_value = {(change.name, change.value): change for change in history.changes}
    _settle_unknown(history)
    by_name = {name: [change for change in history.changes if change.name == name] for name in ALL_NAMES}
    for look in history.looks:
        if look.rows is None:
            yield from _check_absent(look, by_name[look.name])
        else:
            yield from _check_rows(look, by_name[look.name], by_value)
    for repeat in history.repeats:
        yield from _check_repeat(repeat, by_name[repeat.name], by_value[repeat.name, repeat.value])
    for change in history.changes:
        # The source of a move is seen as of its beginning.
        if change.kind == "carried" and change.source and change.seen < float("inf"):
            look = Look(change.source, change.before, change.begin, change.seen)
            yield from _check_rows(look, by_name[change.source], by_value)
            yield from _check_move(change, by_name[change.source])


def _settle_unknown(history: History) -> None:
    """Let each change be certain from the moment at which somebody saw any part of its commit."""
    first: dict[int, float] = {}
    for look in history.looks:
        for value in set(look.rows or ()):
            first[value] = min(first.get(value, float("inf")), look.end)
    for change in history.changes:
        if change.outcome != "refused":
            change.seen = min(change.seen, first.get(change.value, float("inf")))


def _written(change: Change | None, look: Look) -> str:
    """Say why a look cannot show a change; empty if it can."""
    if change is None:
        return "nobody wrote it"
    if change.outcome == "refused":
        return "its writer was told that nothing has happened"
    return "" if change.begin < look.end else "its writer had not begun"


def _check_rows(look: Look, changes: Sequence[Change], by_value: Mapping[tuple[str, int], Change]) -> Iterator[str]:
    rows = look.rows or []
    appended: list[Change] = []
    base: Change | None = None
    for place in reversed(range(len(rows))):
        change = by_value.get((look.name, rows[place]))
        if reason := _written(change, look):
            yield f"{look}: found {rows[place]}, but {reason}"
            return
        if change.kind == "append":
            appended.append(change)
            continue
        base = change
        expected = [*change.before, change.value] if change.kind == "carried" else [change.value] * (place + 1)
        if rows[: place + 1] != expected:
            yield f"{look}: expected that it begins with {expected}"
        break
    if base is None:
        yield f"{look}: expected rows that {look.name} was made or filled with"
        return
    if len({change.value for change in appended}) < len(appended):
        yield f"{look}: the same row was appended twice"
    for change in appended:
        if change.seen < base.begin:
            yield f"{look}: found {change.value}, which {base.value} has replaced"
    for later in changes:
        if later.begin <= base.seen or later.seen >= look.begin or later.value in rows:
            continue
        if later.replaces:
            yield f"{look}: found {base.value}, which {later} has replaced"
        else:
            yield f"{look}: expected the row that {later} has appended to {base}"


def _check_absent(look: Look, changes: Sequence[Change]) -> Iterator[str]:
    ended = [-float("inf")]
    ended += [
        change.seen
        for change in changes
        if change.kind == "delete" and change.outcome != "refused" and change.begin < look.end
    ]
    there = [change for change in changes if change.kind != "delete" and change.seen < look.begin]
    for over in ended:
        if not any(over < change.begin for change in there):
            return
    yield f"{look}: expected an array, as {there[-1]} has left it there"


def _check_repeat(repeat: Repeat, changes: Sequence[Change], own: Change) -> Iterator[str]:
    """Check that tasks which ran again were refused only if the array was made anew, or had too many commits since."""
    since = []
    for each in changes:
        # The request of a writer that was interrupted may arrive a little later.
        last = min(each.seen, each.end + 1)
        if each.outcome != "refused" and last > own.begin and each.begin < repeat.end:
            since.append(each)
    is_another = any(change.kind in ("make", "delete", "carried") for change in since)
    if repeat.refusal and not is_another and len(since) < REMEMBERED:
        yield f"{own}: refused when its tasks ran again: {repeat.refusal}"


def _check_move(move: Change, changes: Sequence[Change]) -> Iterator[str]:
    """Check that a move took along all that others wrote until then, unless somebody has made the source again."""
    end = move.seen
    others = [change for change in changes if change.value != move.value]
    near = [change for change in others if change.begin < end and change.seen > move.begin]
    if any(change.replaces and change.outcome != "refused" for change in near):
        return
    for change in near:
        if change.outcome == "ok" and change.begin > move.begin and change.value not in (move.before or ()):
            yield f"{move} lost {change}, which was committed to its source meanwhile"


def print_counts(history: History, **others: Any) -> None:
    """Say how much a run did."""
    counted = ", ".join(f"{name} {count}" for name, count in sorted(history.counts.items()))
    print(", ".join(f"{name} {value}" for name, value in others.items()) + ";", counted)


def serve(protocol: str) -> int:
    """Fork a worker for each line of settings, and print its number; then wait for all, and count those that failed.

    A fork begins at once, where a new interpreter would first import everything.
    """
    fsspec.get_filesystem_class(protocol)
    failed = 0
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            status = 1
            try:
                settings = Settings(**json.loads(line))
                listen(settings, pytest.MonkeyPatch())
                let_clock_differ()
                work(settings)
                status = 0
            finally:
                os._exit(status)
        print(pid, flush=True)
    with suppress(ChildProcessError):
        while True:
            _, status = os.wait()
            failed += os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0
    return failed


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(serve(sys.argv[1]))
