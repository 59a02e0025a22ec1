"""The commit of groups on local disks as a small model, which `checker` tries in all orders.

A transaction prepares its members, writes the manifest with an entry for each, applies the entries, and clears the log.
The write of the manifest is the commit. Whoever takes the lock of a member applies its entry first. `TABLE` says what
that does, by what is found there, as `b2array.catalog.redo.TABLE` does. Any process may be killed between two steps,
which frees its locks and leaves the rest. Software that knows no group writes to members as it finds them; it takes
their locks.

A frame is a history: the names of the commits that made it. `World.truth` has what each member must be at that moment:
once the manifest names a commit, it has happened. Software that writes to a member before its entry is applied wins, as
the table has it, but for frames that are replaced or deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from checker import Again, Outcomes, Process, Step

Kind = Literal["patch", "index", "frame", "delete"]
"""A header over the beginning of a file, the index of a sparse frame, a staged frame, or none."""
Found = Literal["before", "after", "nothing", "another", "damaged"]
History: TypeAlias = "tuple[str, ...] | None"

TABLE: Mapping[tuple[Found, Kind], str] = {
    ("before", "patch"): "write if the tail is there",
    ("before", "index"): "rename in",
    ("before", "frame"): "swap",
    ("before", "delete"): "rename out",
    ("after", "patch"): "leave",
    ("after", "index"): "leave",
    ("after", "frame"): "leave",
    ("after", "delete"): "leave",
    ("nothing", "patch"): "leave",
    ("nothing", "index"): "rename in",
    ("nothing", "frame"): "rename in",
    ("nothing", "delete"): "leave",
    ("another", "patch"): "leave",
    ("another", "index"): "leave",
    ("another", "frame"): "leave",
    ("another", "delete"): "leave",
    ("damaged", "patch"): "write if the tail is there",
    ("damaged", "index"): "leave",
    ("damaged", "frame"): "leave",
    ("damaged", "delete"): "leave",
}
"""What applying an entry does, by what is found at its member."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of the protocol."""

    table: Mapping[tuple[Found, Kind], str] = field(default_factory=lambda: TABLE, hash=False)
    applies_first: bool = True
    """A writer of one member applies the entry that waits for it."""
    recovers_first: bool = True
    """A transaction applies all entries before it writes its own."""
    applies_before_clearing: bool = True
    """The log is cleared when its entries are applied."""
    stages_first: bool = True
    """What an entry refers to is there before the manifest names it."""
    reads_the_log: bool = True
    """Readers of the group look for an entry."""
    takes_the_manifest_first: bool = True
    """Who holds the lock of a member does not wait for that of the manifest."""
    frees_the_second_name: bool = True
    """A killed writer may have left a file that goes with two names: the new one is removed first."""
    compares_again: bool = True
    """A snapshot reads its members again until none has changed meanwhile."""
    compacts_under_the_manifest: bool = True
    """What destroys bytes holds the lock of the manifest."""
    compacts_for_snapshots: bool = True
    """It keeps what snapshots list."""
    applies_under_its_locks: bool = True
    """A transaction keeps its locks until its entries are applied: other software takes only the lock of a member."""
    looks_under_the_lock: bool = True
    """A writer of one member looks for an entry after it has taken the lock."""
    lists_two_steps: bool = True
    """A single change that takes two steps, because the system cannot swap names, is an entry like others."""
    compares_what_was_read: bool = True
    """A transaction is refused if a member that it has only read has changed since."""
    locks_what_was_read: bool = True
    """It holds the locks of these members as well, from the comparison to the commit."""


class Frame(NamedTuple):
    """A frame at its place. `tail` is what was appended and is not in the header yet; `kept` has what can be read."""

    identity: str
    history: tuple[str, ...]
    tail: History = None
    is_torn: bool = False
    kept: frozenset[tuple[str, ...]] = frozenset()


class PendingStep(NamedTuple):
    """How a member gets its next state."""

    kind: Kind
    before: Any
    after: Any
    token: str


class World(NamedTuple):
    """The disk, the locks, and what must be true."""

    log: tuple[tuple[str, PendingStep], ...]
    frames: tuple[tuple[str, Frame], ...]
    truth: tuple[tuple[str, tuple[str, ...]], ...]
    staged: frozenset[tuple[str, Any]] = frozenset()
    locks: tuple[tuple[str, str], ...] = ()
    past: tuple[tuple[tuple[str, tuple[str, ...]], ...], ...] = ()
    snapshots: tuple[tuple[tuple[str, tuple[str, ...]], ...], ...] = ()
    ended: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()


def disk(members: str = "xy") -> World:
    """Return a group whose members have one commit."""
    first = ("0",)
    frames = tuple((name, Frame(f"{name}0", first, kept=frozenset({first}))) for name in members)
    truth = tuple((name, first) for name in members)
    return World((), frames, truth, past=(truth,))


def _with(pairs: tuple[tuple[str, Any], ...], name: str, value: Any) -> tuple[tuple[str, Any], ...]:
    changed = {**dict(pairs), name: value}
    return tuple(sorted((each, kept) for each, kept in changed.items() if kept is not None))


def _known(world: World, **truth: History) -> World:
    for name, history in truth.items():
        world = world._replace(truth=_with(world.truth, name, history))
    return world._replace(past=(*world.past, world.truth))


# System calls.


def lock(who: str, name: str) -> Step:
    def act(world: World) -> Outcomes:
        free = all(each != name for each, _ in world.locks)
        return [(world._replace(locks=(*world.locks, (name, who))), None)] if free else []

    return Step(f"lock {name}", act)


def unlock(who: str) -> Step:
    """Free all locks; the process has ended."""
    return Step("unlock", lambda world: [(bury(world, who), None)])


def free(who: str) -> Step:
    """Free all locks; the process goes on."""

    def act(world: World) -> Outcomes:
        return [(world._replace(locks=tuple(pair for pair in world.locks if pair[1] != who)), None)]

    return Step("free the locks", act)


def bury(world: World, who: str) -> World:
    """Do what the system does when a process ends."""
    locks = tuple(sorted(pair for pair in world.locks if pair[1] != who))
    return world._replace(locks=locks, ended=world.ended | {who})


def read_manifest() -> Step:
    return Step("read the manifest", lambda world: [(world, (world.log, world.snapshots))])


def write_manifest(
    who: str, log: tuple[tuple[str, PendingStep], ...], truth: tuple[tuple[str, History], ...] = ()
) -> Step:
    def act(world: World) -> Outcomes:
        after = world._replace(log=log)
        return [(_known(after, **dict(truth)) if truth else after, None)]

    return Step(f"write the manifest with {len(log)} entries", act)


def look(name: str) -> Step:
    return Step(f"look at {name}", lambda world: [(world, dict(world.frames).get(name))])


def put(name: str, frame: Frame | None, label: str) -> Step:
    return Step(f"{label} {name}", lambda world: [(world._replace(frames=_with(world.frames, name, frame)), None)])


def stage(token: str, content: Any) -> Step:
    return Step(f"stage {token}", lambda world: [(world._replace(staged=world.staged | {(token, content)}), None)])


def unstage(token: str) -> Step:
    def act(world: World) -> Outcomes:
        return [(world._replace(staged=frozenset(pair for pair in world.staged if pair[0] != token)), None)]

    return Step(f"remove {token}", act)


def look_aside(token: str) -> Step:
    return Step(f"look at {token}", lambda world: [(world, dict(world.staged).get(token))])


def rename_in(name: str, token: str) -> Step:
    """Give what was staged the name of the member."""

    def act(world: World) -> Outcomes:
        content = dict(world.staged)[token]
        frame = dict(world.frames).get(name)
        if not isinstance(content, Frame) and frame is not None:  # an index
            content = frame._replace(history=content, is_torn=False)
        left = world.staged - {(token, dict(world.staged)[token])}
        return [(world._replace(frames=_with(world.frames, name, content), staged=left), None)]

    return Step(f"rename {token} to {name}", act)


# Applying entries.


def found_at(name: str, entry: PendingStep, frame: Frame | None) -> Found:
    """Say which column of the table holds."""
    if frame is None:
        return "nothing"
    if frame.is_torn:
        return "damaged"
    state: Any = frame.history if entry.kind in ("patch", "index") else frame.identity
    if state == entry.after:
        return "after"
    return "before" if state == entry.before else "another"


def apply(rules: Rules, name: str, entry: PendingStep) -> Process:
    """Do what the table says; the caller holds the lock of the member."""
    frame = yield look(name)
    action = rules.table[found_at(name, entry, frame), entry.kind]
    if action.startswith("write"):
        if frame is not None and (frame.tail == entry.after or action == "write"):
            yield put(name, frame._replace(is_torn=True), "write half of the header of")
            yield put(name, frame._replace(history=entry.after, tail=None, is_torn=False), "write the header of")
    elif action == "rename out":
        yield from take_out(rules, name, entry, frame)
    elif action in ("rename in", "swap") and (yield look_aside(entry.token)) is not None:
        if action == "swap":  # in two steps, where the system cannot do it in one
            yield put(name, None, "rename away")
        yield rename_in(name, entry.token)
    return None


def take_out(rules: Rules, name: str, entry: PendingStep, frame: Frame | None) -> Process:
    """Rename a member away: where nothing must be replaced, the file has both names for a moment."""
    if (yield look_aside(entry.token)) is not None:
        if not rules.frees_the_second_name:
            return None  # nothing may take the place of another file
        yield unstage(entry.token)
    yield stage(entry.token, frame)
    yield put(name, None, "remove the old name of")
    yield unstage(entry.token)
    return None


def settle(rules: Rules, log: tuple[tuple[str, PendingStep], ...], held: str, who: str) -> Process:
    """Apply a log; the caller holds the lock of the manifest, and those of the members `held`."""
    for name, entry in log:
        if name not in held:
            yield lock(who, name)
        yield from apply(rules, name, entry)
    return None


# Writers.


def transaction(rules: Rules, who: str, changes: tuple[tuple[str, Kind], ...]) -> Process:
    """Commit changes of several members."""
    names = [name for name, _ in changes]
    yield lock(who, "manifest")
    for name in names:
        yield lock(who, name)
    log, _ = yield read_manifest()
    if rules.recovers_first:
        yield from settle(rules, log, "".join(names), who)
        log = ()
    entries: list[tuple[str, PendingStep]] = []
    truth: list[tuple[str, History]] = []
    staging: list[Step] = []
    for name, kind in changes:
        frame = yield look(name)
        if frame is None and kind != "frame":
            yield unlock(who)
            return None
        entry, new, step = planned(who, name, kind, frame)
        entries.append((name, entry))
        truth.append((name, new))
        staging += step
    if rules.stages_first:
        for step in staging:
            yield step
    mine = (*(pair for pair in log if pair[0] not in names), *entries)
    yield write_manifest(who, mine, tuple(truth))
    if not rules.stages_first:
        for step in staging:
            yield step
    if not rules.applies_before_clearing:
        yield write_manifest(who, ())
    held = "".join(names)
    if not rules.applies_under_its_locks:
        yield free(who)
        yield lock(who, "manifest")
        held = ""
    yield from settle(rules, tuple(entries), held, who)
    yield write_manifest(who, tuple(pair for pair in mine if pair not in entries))
    yield unlock(who)
    return None


def dependent(rules: Rules, who: str, read: str, name: str, kind: Kind) -> Process:
    """Read one member, and commit a change of another one that depends on it."""
    seen = yield look(read)
    yield lock(who, "manifest")
    names = sorted({read, name}) if rules.locks_what_was_read else [name]
    for each in names:
        yield lock(who, each)
    log, _ = yield read_manifest()
    yield from settle(rules, log, "".join(names), who)
    now = yield look(read)
    if rules.compares_what_was_read and now != seen:
        yield unlock(who)
        return None
    entry, new, staging = planned(who, name, kind, (yield look(name)))
    yield from staging
    commit = write_manifest(who, ((name, entry),), ((name, new),))

    def act(world: World) -> Outcomes:
        ((after, result),) = commit.act(world)
        if dict(world.frames)[read].history != seen.history:
            after = after._replace(wrong=after.wrong | {f"{who} depends on {read}, which has changed"})
        return [(after, result)]

    yield Step(commit.label, act)
    yield from settle(rules, ((name, entry),), "".join(names), who)
    yield write_manifest(who, ())
    yield unlock(who)
    return None


def planned(who: str, name: str, kind: Kind, frame: Frame | None) -> tuple[PendingStep, History, list[Step]]:
    """Return an entry, what it makes of the member, and how that is prepared."""
    token = f"{name} by {who}"
    if frame is None or kind == "frame":
        new = (who,)
        return PendingStep("frame", frame and frame.identity, token, token), new, [stage(token, Frame(token, new))]
    new = (*frame.history, who)
    if kind == "patch":
        step = put(name, frame._replace(tail=new), "append to")
        return PendingStep(kind, frame.history, new, ""), new, [step]
    if kind == "index":
        return PendingStep(kind, frame.history, new, token), new, [stage(token, new)]
    return PendingStep(kind, frame.identity, None, token), None, []


def alone(rules: Rules, who: str, name: str, kind: Kind) -> Process:
    """Append to one member: one step, after a look at the log."""
    if not rules.looks_under_the_lock:
        log, _ = yield read_manifest()
    yield lock(who, name)
    if not rules.takes_the_manifest_first:
        yield lock(who, "manifest")
    if rules.looks_under_the_lock:
        log, _ = yield read_manifest()
    entry = dict(log).get(name)
    if entry is not None and rules.applies_first:
        yield from apply(rules, name, entry)
    frame = yield look(name)
    if frame is not None and not frame.is_torn:
        yield from _append(who, name, frame, kind, is_foreign=False)
    yield unlock(who)
    return None


def replacement(rules: Rules, who: str, name: str) -> Process:
    """Replace one member by a frame of the other layout, where the system cannot swap two names."""
    if rules.lists_two_steps:
        return Again(transaction, (rules, who, ((name, "frame"),)))
    yield lock(who, "manifest")
    yield lock(who, name)
    log, _ = yield read_manifest()
    yield from settle(rules, log, name, who)
    entry, new, steps = planned(who, name, "frame", (yield look(name)))
    yield from steps
    yield put(name, None, "rename away")
    moved = rename_in(name, entry.token)
    yield Step(moved.label, lambda world: [(_known(after, **{name: new}), None) for after, _ in moved.act(world)])
    yield write_manifest(who, ())
    yield unlock(who)
    return None


def foreign(who: str, name: str, kind: Kind) -> Process:
    """Append as other software does, which knows no log."""
    yield lock(who, name)
    frame = yield look(name)
    if frame is not None and not frame.is_torn:
        yield from _append(who, name, frame, kind, is_foreign=True)
    yield unlock(who)
    return None


def replaced(who: str, name: str) -> Process:
    """Put another frame there, as a copy of a file does."""
    yield lock(who, name)
    new = (who,)
    frame = Frame(f"{name} by {who}", new, kept=frozenset({new}))

    def act(world: World) -> Outcomes:
        after = world._replace(frames=_with(world.frames, name, frame))
        return [(_known(after, **{name: new}), None)]

    yield Step(f"replace {name}", act)
    yield unlock(who)
    return None


def _append(who: str, name: str, frame: Frame, kind: Kind, *, is_foreign: bool) -> Process:
    new = (*frame.history, who)
    if kind == "patch":

        def over(world: World) -> Outcomes:
            """Append over what was appended before and is in no header: other software takes a commit away."""
            entry = dict(world.log).get(name)
            after = world._replace(frames=_with(world.frames, name, frame._replace(tail=new)))
            takes = is_foreign and entry is not None and entry.kind == "patch" and entry.before == frame.history
            return [(_known(after, **{name: frame.history}) if takes else after, None)]

        yield Step(f"append to {name}", over)

    def act(world: World) -> Outcomes:
        before = dict(world.frames).get(name)
        entry = dict(world.log).get(name)
        after = world._replace(
            frames=_with(world.frames, name, frame._replace(history=new, tail=None, kept=frame.kept | {new}))
        )
        if is_foreign and entry is not None and found_at(name, entry, before) == "before":
            if entry.kind in ("frame", "delete"):
                return [(after, None)]  # what somebody writes to a frame that goes does not save it
            return [(_known(after, **{name: new}), None)]
        return [(_known(after, **{name: (*dict(world.truth).get(name, ()), who)}), None)]

    yield Step(f"commit to {name}", act)
    return None


def last(rules: Rules, others: tuple[str, ...]) -> Process:
    """When all others have ended, apply what is left, as the next writer does."""
    yield Step("wait", lambda world: [(world, None)] if world.ended >= {*others} else [])
    yield lock("last", "manifest")
    log, _ = yield read_manifest()
    yield from settle(rules, log, "", "last")
    yield write_manifest("last", ())
    yield unlock("last")
    return None


# Readers and snapshots.


def reader(rules: Rules, name: str) -> Process:
    """Read one member by the manifest, without a lock."""
    begin = yield Step("begin", lambda world: [(world, len(world.past) - 1)])
    log, _ = yield read_manifest()
    entry = dict(log).get(name)
    frame = yield look(name)
    history: History = None if frame is None else frame.history
    if entry is not None and rules.reads_the_log:
        found = found_at(name, entry, frame)
        if found == "damaged":
            return None  # while the header is written; the reader tries again
        if entry.kind == "patch" and found == "before" and frame is not None and frame.tail == entry.after:
            history = entry.after
        elif entry.kind == "delete" and found == "before":
            history = None
        elif entry.kind in ("index", "frame") and found in ("before", "nothing"):
            aside = yield look_aside(entry.token)
            if aside is None:
                return None  # it was applied meanwhile; the reader tries again
            history = aside.history if isinstance(aside, Frame) else aside
    elif frame is None or frame.is_torn:
        return None

    def act(world: World) -> Outcomes:
        if any(dict(truth).get(name) == history for truth in world.past[begin:]):
            return [(world, None)]
        return [(world._replace(wrong=world.wrong | {f"a reader found {history}, which no moment had"}), None)]

    yield Step("compare", act)
    return None


def causal(who: str, names: str) -> Process:
    """Commit to members one after the other: who has seen the later commit must find the earlier one."""
    for name in names:
        yield lock(who, name)
        frame = yield look(name)
        yield from _append(who, name, frame, "index", is_foreign=False)
        yield free(who)
    yield unlock(who)
    return None


def snapshot(rules: Rules, who: str, names: str) -> Process:
    """Note the states of all members under the lock of the manifest."""
    yield lock(who, "manifest")
    before: tuple[tuple[str, tuple[str, ...]], ...] = ()
    while True:
        states = []
        for name in names:
            frame = yield look(name)
            states.append((name, frame.history))
        if tuple(states) == before or not rules.compares_again:
            break
        before = tuple(states)

    def act(world: World) -> Outcomes:
        return [(world._replace(snapshots=(*world.snapshots, tuple(states))), None)]

    yield Step("write the manifest with a snapshot", act)
    yield unlock(who)
    return None


def compaction(rules: Rules, who: str, name: str) -> Process:
    """Write a member again without what nobody needs."""
    if rules.compacts_under_the_manifest:
        yield lock(who, "manifest")
    yield lock(who, name)
    _, snapshots = yield read_manifest()
    frame = yield look(name)
    listed = {dict(states)[name] for states in snapshots} if rules.compacts_for_snapshots else set()
    yield put(name, frame._replace(kept=frame.kept & (listed | {frame.history})), "compact")
    yield unlock(who)
    return None


# What must hold.


def always(world: World) -> Iterator[str]:
    """Name what is wrong with a disk at any moment."""
    yield from world.wrong
    frames = dict(world.frames)
    for states in world.snapshots:
        for name, history in states:
            if history not in frames[name].kept:
                yield f"a snapshot has lost {name}"
        if any("P" in history for _, history in states) and "P" not in states[0][1]:
            yield "a snapshot has a commit, and not the one that came before it"


def not_lost(world: World, _: frozenset[str]) -> Iterator[str]:
    """Name the transaction "T" if it has ended, nobody was killed, and "x" does not have its change."""
    frame = dict(world.frames).get("x")
    if frame is not None and "T" not in frame.history:
        yield f"T was acknowledged, and x is {frame.history}"


def at_the_end(world: World, _: frozenset[str]) -> Iterator[str]:
    """Name what is wrong when everybody has ended."""
    frames, truth = dict(world.frames), dict(world.truth)
    for name in {*frames, *truth}:
        frame = frames.get(name)
        if frame is not None and frame.is_torn:
            yield f"{name} is damaged"
        elif (None if frame is None else frame.history) != truth.get(name):
            yield f"{name} is not what was committed"


def changed(found: Found, kind: Kind, action: str) -> Rules:
    """Return the rules with another action in one cell of the table."""
    return Rules(table={**TABLE, (found, kind): action})


def without(rule: str) -> Rules:
    """Return the rules without one."""
    return replace(Rules(), **{rule: False})
