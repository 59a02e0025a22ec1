"""The commit of groups in object stores as a small model, which `checker` tries in all orders.

The world is a bucket with one group of members "x" and "y": chunks under numbers, an immutable index for each revision,
published indexes, and the manifest, whose conditional write is the commit. The writers follow
`b2array.commit.in_bucket` step by step, vacuum follows `b2array.tools.vacuum`. Every object is as old as any
grace: a writer may sleep for an hour between two steps.

An array is a history: the names of the commits that made it, in a chunk each. `World.log` has the commits in the order
in which they took effect, and says what each reader may see. `Rules` has a switch for each rule of the protocol. With
one of them off, the checker must find what the rule is for.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from checker import Again, Outcomes, Process, Step

Kind = Literal["append", "set", "whole", "make", "delete", "read", "restore"]
"""What a commit does to a member. "whole" appends to a contiguous one: the revision has the new data in itself."""
History: TypeAlias = "tuple[str, ...] | None"
"""What an array has; None if there is no such member."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of the protocol."""

    conditional: bool = True
    """The manifest is replaced only in the version that the commit was built on."""
    adopts: bool = True
    """A member notes its group before the first commit of the group to it."""
    overwrites_what_it_saw: bool = True
    """A writer that replaces an array by its URL does so in the version in which no group was noted."""
    rebases: bool = True
    """What was prepared for another revision is prepared again."""
    finds_lost_answers: bool = True
    """A writer whose write was refused looks for its own commit in the manifest."""
    reads_are_checked: bool = True
    """Rows that a transaction has read are compared, too."""
    rows_win: bool = True
    """A reader by URL takes the revision that the manifest lists."""
    publishes_newer: bool = True
    """A published index is replaced only by a newer one."""
    publishes_again: bool = True
    """A writer that was overtaken while it published looks again."""
    numbers_rise: bool = True
    """A deleted member leaves the first number that none of its chunks had."""
    vacuum_looks_again: bool = True
    """Vacuum removes only what it found unneeded in the manifest that its own commit has followed."""
    vacuum_commits: bool = True
    """Vacuum commits before it removes anything, with a floor above the chunks that it removes."""
    floor_counts: bool = True
    """A writer puts chunks below the floor again, under other numbers."""
    indexes_are_checked: bool = True
    """A revision that was prepared for an earlier manifest is prepared again if vacuum has been there."""
    restores_what_is_kept: bool = True
    """A state is restored only while the manifest has its snapshot."""
    snapshots_keep: bool = True
    """Vacuum leaves alone what snapshots name."""
    adopts_what_goes: bool = True
    """A member notes its group before the group deletes it, as well."""
    unlists_completed_rows: bool = True
    """The first commit removes what is published of the rows with which it has completed the manifest."""
    remembers_what_goes: bool = True
    """A writer that finds its commit below others' removes what that commit has deleted."""


INSIDE = -1
"""The number of a chunk that is no object: the index of a contiguous member has it."""


class Index(NamedTuple):
    """An index: of a revision, or a published copy. `chunks` has the number of each chunk."""

    revision: str
    number: int
    noted: bool
    history: tuple[str, ...]
    chunks: tuple[int, ...]


class Row(NamedTuple):
    """What the manifest says of a member. The revision is "" until the group first commits to the member."""

    revision: str
    number: int
    next: int


class Manifest(NamedTuple):
    """The manifest; `version` is what conditional writes compare."""

    version: int
    rows: tuple[tuple[str, Row], ...]
    floors: tuple[tuple[str, int], ...] = ()
    snapshots: tuple[tuple[tuple[str, Row], ...], ...] = ()
    recent: tuple[str, ...] = ()
    cleanings: int = 0
    is_complete: bool = True


class World(NamedTuple):
    """The bucket, what the network still carries, and what happened so far."""

    manifest: Manifest
    chunks: frozenset[tuple[str, int, str]]
    indexes: frozenset[tuple[str, Index]]
    published: tuple[tuple[str, Index], ...]
    late: frozenset[tuple[Any, ...]] = frozenset()
    losses: int = 0
    log: tuple[tuple[str, tuple[tuple[str, Kind], ...]], ...] = ()
    acknowledged: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()


def bucket(*, members: str = "xy", adopted: bool = True, listed: bool = True, losses: int = 0) -> World:
    """Return a bucket whose members have one chunk each; if they are not `listed`, the group has no rows yet."""
    chunks, indexes, published, rows = [], [], [], []
    for name in members:
        index = Index(f"{name}0" if adopted else "plain", 0, adopted, ("0",), (0,))
        chunks.append((name, 0, "0"))
        published.append((name, index))
        rows.append((name, Row(index.revision if adopted else "", 0, 1)))
        if adopted:
            indexes.append((name, index))
    manifest = Manifest(0, tuple(rows) if listed else (), is_complete=listed)
    return World(manifest, frozenset(chunks), frozenset(indexes), tuple(published), losses=losses)


def history_after(log: Iterable[tuple[str, tuple[tuple[str, Kind], ...]]], name: str, first: History) -> History:
    """Return what commits make of a member."""
    now = first
    for commit, changes in log:
        kind = dict(changes).get(name)
        if kind in ("append", "whole"):
            now = (*(now or ()), commit)
        elif kind in ("set", "make"):
            now = (commit,)
        elif kind == "delete":
            now = None
        elif kind == "restore":
            now = ("0",)
    return now


def _with(pairs: tuple[tuple[str, Any], ...], name: str, value: Any) -> tuple[tuple[str, Any], ...]:
    changed = {**dict(pairs), name: value}
    return tuple(sorted((each, kept) for each, kept in changed.items() if kept is not None))


# Requests.


def get_manifest() -> Step:
    return Step("get the manifest", lambda world: [(world, world.manifest)])


class Commit(NamedTuple):
    """A write of the manifest: who commits what, and the revisions that he has read."""

    who: str
    manifest: Manifest
    changes: tuple[tuple[str, Kind], ...] = ()
    read: tuple[tuple[str, str], ...] = ()

    def fits(self, world: World, rules: Rules) -> bool:
        return world.manifest.version == self.manifest.version - 1 or not rules.conditional

    def done(self, world: World) -> World:
        """Return the world in which the manifest is replaced."""
        rows = dict(world.manifest.rows)
        stale = [name for name, revision in self.read if name not in rows or rows[name].revision != revision]
        wrong = {f"{self.who} committed though {name} is not what it has read" for name in stale}
        log = world.log if self.who in ("vacuum", "listing") else (*world.log, (self.who, self.changes))
        return world._replace(manifest=self.manifest, log=log, wrong=world.wrong | wrong)


def put_manifest(rules: Rules, commit: Commit) -> Step:
    """Replace the manifest of the version before; the answer may be lost, or the request come late."""

    def act(world: World) -> Outcomes:
        fits = commit.fits(world, rules)
        outcomes = [(commit.done(world), "done")] if fits else [(world, "refused")]
        if world.losses:
            less = world._replace(losses=world.losses - 1)
            if fits:
                # The client repeats a request whose answer was lost, and that is refused.
                outcomes += [(commit.done(less), "refused"), (commit.done(less), "lost")]
            outcomes.append((less._replace(late=less.late | {commit}), "lost"))
        return outcomes

    return Step(f"put manifest {commit.manifest.version}", act)


def complete(manifest: Manifest) -> Step:
    """List the published indexes, and return the next manifest, whose rows have no revisions."""

    def act(world: World) -> Outcomes:
        rows = tuple((name, Row("", 0, max(index.chunks) + 1)) for name, index in world.published)
        return [(world, manifest._replace(version=manifest.version + 1, rows=rows, is_complete=True))]

    return Step("list", act)


def get_published(name: str) -> Step:
    return Step(f"get the published {name}", lambda world: [(world, dict(world.published).get(name))])


def put_published(name: str, new: Index, expected: Index | None, who: str = "", kind: Kind = "set") -> Step:
    """Replace the published index that was expected. If `who` is given, that is a commit of the member alone."""

    def act(world: World) -> Outcomes:
        if dict(world.published).get(name) != expected:
            return [(world, False)]
        after = world._replace(published=_with(world.published, name, new))
        return [(after._replace(log=(*after.log, (who, ((name, kind),)))) if who else after, True)]

    return Step(f"publish {name} {new.revision}", act)


def delete_published(name: str) -> Step:
    def act(world: World) -> Outcomes:
        return [(world._replace(published=_with(world.published, name, None)), None)]

    return Step(f"unpublish {name}", act)


def get_index(name: str, revision: str) -> Step:
    def act(world: World) -> Outcomes:
        return [(world, next((i for m, i in world.indexes if (m, i.revision) == (name, revision)), None))]

    return Step(f"get index {revision}", act)


def put_index(name: str, index: Index) -> Step:
    return Step(
        f"put index {index.revision}", lambda world: [(world._replace(indexes=world.indexes | {(name, index)}), None)]
    )


def put_chunk(name: str, first: int, content: str) -> Step:
    """Put a chunk under the first free number: numbers that are taken are refused, one after the other."""

    def act(world: World) -> Outcomes:
        taken = {number for each, number, _ in world.chunks if each == name}
        number = next(n for n in range(first, first + len(taken) + 1) if n not in taken)
        return [(world._replace(chunks=world.chunks | {(name, number, content)}), number)]

    return Step(f"put a chunk of {name}", act)


def has_chunk(name: str, number: int, content: str) -> Step:
    return Step(f"look for chunk {number} of {name}", lambda world: [(world, (name, number, content) in world.chunks)])


def get_chunk(name: str, number: int) -> Step:
    def act(world: World) -> Outcomes:
        return [(world, next((c for m, n, c in world.chunks if (m, n) == (name, number)), None))]

    return Step(f"get chunk {number} of {name}", act)


def end(who: str, *, well: bool) -> Step:
    """Tell the user that the commit has happened, or that it has not."""

    def act(world: World) -> Outcomes:
        if well:
            return [(world._replace(acknowledged=world.acknowledged | {who}), None)]
        return [(world._replace(refused=world.refused | {who}), None)]

    return Step("return" if well else "raise ConflictError", act)


# Writers.


class Prepared(NamedTuple):
    """A revision that waits for the manifest to list it."""

    base: str
    index: Index
    chunk: int
    cleanings: int


class Work(NamedTuple):
    """What a writer wants, and has prepared.

    `read` has the revisions that its changes were made from, `goes` the members whose published indexes its latest
    attempt would remove.
    """

    who: str
    changes: tuple[tuple[str, Kind], ...]
    read: tuple[tuple[str, str], ...] = ()
    prepared: tuple[tuple[str, Prepared], ...] = ()
    tries: int = 0
    goes: tuple[str, ...] = ()

    def again(self, prepared: Mapping[str, Prepared]) -> Work:
        return self._replace(prepared=tuple(sorted(prepared.items())), tries=self.tries + 1)


def writer(rules: Rules, who: str, changes: tuple[tuple[str, Kind], ...]) -> Process:
    """Commit changes of members through the group."""
    work = Work(who, tuple(pair for pair in changes if pair[1] != "read"))
    if len(work.changes) < len(changes):
        manifest = yield get_manifest()
        rows = dict(manifest.rows)
        work = work._replace(read=tuple((name, rows[name].revision) for name, kind in changes if kind == "read"))
    return Again(attempt, (rules, work))


def attempt(rules: Rules, work: Work) -> Process:
    """Try to commit on top of the newest manifest."""
    who = work.who
    manifest: Manifest = yield get_manifest()
    if rules.finds_lost_answers and who in manifest.recent:
        return Again(publish, (rules, work if rules.remembers_what_goes else leaving(work, manifest)))
    if not manifest.is_complete:
        return Again(first_attempt, (rules, work, manifest))
    return Again(commit, (rules, work, manifest, manifest))


def first_attempt(rules: Rules, work: Work, seen: Manifest) -> Process:
    """Complete the manifest, and commit on top of that."""
    manifest = yield complete(seen)
    if (yield put_manifest(rules, Commit("listing", manifest))) != "done":
        return Again(attempt, (rules, work))
    return Again(commit, (rules, work, manifest, seen))


def commit(rules: Rules, work: Work, manifest: Manifest, seen: Manifest) -> Process:
    """Try to commit on top of a manifest; `seen` is what was there before it was completed."""
    who = work.who
    work = leaving(work, manifest if rules.unlists_completed_rows else seen)
    rows, floors, prepared = dict(manifest.rows), dict(manifest.floors), dict(work.prepared)
    stale = any(name not in rows or rows[name].revision != revision for name, revision in work.read)
    gone = any((name in rows) == (kind == "make") for name, kind in work.changes)
    if gone or (stale and rules.reads_are_checked):
        yield end(who, well=False)
        return None
    for name, kind in work.changes:
        row, floor = rows.get(name), floors.get(name, 0)
        if kind == "delete" and row is not None:
            is_plain = not row.revision and rules.adopts_what_goes
            if is_plain and (yield from adopt(rules, work, name)) is None:
                return Again(attempt, (rules, work.again(prepared)))
            floors[name] = max(row.next, floor) if rules.numbers_rise else 0
            del rows[name]
            continue
        outcome = yield from prepare(rules, work, name, kind, manifest, prepared)
        if outcome == "refused":
            yield end(who, well=False)
            return None
        if outcome == "overtaken":
            return Again(attempt, (rules, work.again(prepared)))
        index = prepared[name].index
        rows[name] = Row(index.revision, index.number, max(row.next if row else floor, prepared[name].chunk + 1))
        if kind == "make":
            floors.pop(name, None)
    new = manifest._replace(
        version=manifest.version + 1,
        rows=tuple(sorted(rows.items())),
        floors=tuple(sorted(floors.items())),
        recent=(*manifest.recent, who),
    )
    answer = yield put_manifest(rules, Commit(who, new, work.changes, work.read))
    if answer == "refused":
        return Again(attempt, (rules, work.again(prepared)))
    if answer == "lost":
        now = yield get_manifest()
        if who not in now.recent:
            return None  # nobody knows: the writer raises what the client raised, and removes nothing
    return Again(publish, (rules, work.again(prepared)))


Preparing = Generator[Step, Any, str]


def prepare(
    rules: Rules, work: Work, name: str, kind: Kind, manifest: Manifest, prepared: dict[str, Prepared]
) -> Preparing:
    """Put a chunk and an index, unless an earlier attempt did so; say whether that is "done"."""
    row, floor = dict(manifest.rows).get(name), dict(manifest.floors).get(name, 0)
    current: Index | None = None
    if row is not None and not row.revision:
        current = yield from adopt(rules, work, name)
        if current is None:
            return "overtaken"
    base, known = "" if row is None else row.revision, prepared.get(name)
    if known is not None and rules.floor_counts and INSIDE < known.chunk < floor:
        known = None
    if known is not None and is_still_right(rules, known, base, manifest):
        return "done"
    if row is not None and current is None:
        current = yield get_index(name, row.revision)
        if current is None:  # others have committed since the look at the manifest, and vacuum was there
            return "refused"
    chunk = INSIDE if kind == "whole" else None if known is None else known.chunk
    if chunk is None:
        chunk = yield put_chunk(name, max(floor, 0 if row is None else row.next), work.who)
    elif chunk != INSIDE and not (yield has_chunk(name, chunk, work.who)):
        return "refused"
    revision, number = f"{name}, {work.who}, {work.tries}", manifest.version + 1
    history, chunks = (work.who,), (chunk,)
    if current is not None and kind != "set":
        history, chunks = (*current.history, *history), (*current.chunks, *chunks)
    index = Index(revision, number, True, history, chunks)
    if kind == "make":
        there = yield get_published(name)
        if not (yield put_published(name, index, there)):
            return "overtaken"
    yield put_index(name, index)
    prepared[name] = Prepared(base, index, chunk, manifest.cleanings)
    return "done"


def is_still_right(rules: Rules, known: Prepared, base: str, manifest: Manifest) -> bool:
    """Whether what was prepared earlier can be listed."""
    is_there = known.cleanings == manifest.cleanings or not rules.indexes_are_checked
    return is_there and (known.base == base or not rules.rebases)


def leaving(work: Work, manifest: Manifest) -> Work:
    """Note which published indexes go if the changes are made to the rows of a manifest."""
    rows = dict(manifest.rows)
    return work._replace(goes=tuple(name for name, kind in work.changes if kind == "delete" and name in rows))


def adopt(rules: Rules, work: Work, name: str) -> Generator[Step, Any, Index | None]:
    """Let the published index note the group; None if another writer was faster."""
    current = yield get_published(name)
    if current is None or current.noted or not rules.adopts:
        return current
    noted = current._replace(revision=f"plain, noted by {work.who}, {work.tries}", noted=True)
    return noted if (yield put_published(name, noted, current)) else None


def publish(rules: Rules, work: Work) -> Process:
    """Copy the indexes for readers that do not know the group."""
    prepared = dict(work.prepared)
    for name, kind in work.changes:
        if kind == "delete":
            if name in work.goes:
                yield delete_published(name)
        elif kind != "make":
            index, is_published = prepared[name].index, False
            while not is_published:
                there = yield get_published(name)
                is_newer = there is not None and there.noted and there.number >= index.number
                is_published = (is_newer and rules.publishes_newer) or (yield put_published(name, index, there))
                is_published = is_published or not rules.publishes_again
    yield end(work.who, well=True)
    return None


def by_itself(rules: Rules, who: str, name: str) -> Process:
    """Append by a handle that was opened before the array was a member: its index alone is replaced."""
    current: Index | None = yield get_published(name)
    if current is None:
        yield end(who, well=False)
        return None
    if current.noted:
        return Again(attempt, (rules, Work(who, ((name, "append"),))))
    chunk = yield put_chunk(name, max(current.chunks) + 1, who)
    new = Index(f"{name}, {who}", 0, False, (*current.history, who), (*current.chunks, chunk))
    if (yield put_published(name, new, current, who, "append")):
        yield end(who, well=True)
        return None
    return Again(by_itself, (rules, who, name))


def overwriter(rules: Rules, who: str, name: str) -> Process:
    """Replace an array by its URL, whether it is a member by then or not."""
    current: Index = yield get_published(name)
    if current.noted:
        return Again(attempt, (rules, Work(who, ((name, "set"),))))
    chunk = yield put_chunk(name, max(current.chunks) + 1, who)
    new = Index(f"{name}, {who}", 0, False, (who,), (chunk,))
    if not rules.overwrites_what_it_saw:
        current = yield get_published(name)  # as if there were no condition
    if (yield put_published(name, new, current, who)):
        yield end(who, well=True)
        return None
    return Again(overwriter, (rules, who, name))


def snapshot(rules: Rules, who: str) -> Process:
    """Copy the rows."""
    manifest = yield get_manifest()
    if who in manifest.recent:
        yield end(who, well=True)
        return None
    new = manifest._replace(
        version=manifest.version + 1,
        snapshots=(*manifest.snapshots, manifest.rows),
        recent=(*manifest.recent, who),
    )
    answer = yield put_manifest(rules, Commit(who, new))
    if answer == "refused":
        return Again(snapshot, (rules, who))
    if answer == "done":
        yield end(who, well=True)
    return None


def dropper(rules: Rules, who: str) -> Process:
    """Drop all snapshots."""
    manifest = yield get_manifest()
    new = manifest._replace(version=manifest.version + 1, snapshots=(), recent=(*manifest.recent, who))
    if (yield put_manifest(rules, Commit(who, new))) == "refused":
        return Again(dropper, (rules, who))
    yield end(who, well=True)
    return None


def restorer(rules: Rules, who: str, name: str) -> Process:
    """Give a member the state that it has in the first snapshot."""
    manifest = yield get_manifest()
    earlier = dict(manifest.snapshots[0])[name] if manifest.snapshots else None
    index = None if earlier is None else (yield get_index(name, earlier.revision))
    if index is None:
        yield end(who, well=False)
        return None
    return Again(restore, (rules, who, name, manifest.snapshots, index, 0))


def restore(rules: Rules, who: str, name: str, snapshots: Any, index: Index, tries: int) -> Process:
    """Try to commit an earlier state."""
    manifest = yield get_manifest()
    if rules.restores_what_is_kept and manifest.snapshots != snapshots:
        yield end(who, well=False)
        return None
    row = dict(manifest.rows)[name]
    new_index = index._replace(revision=f"{name}, {who}, {tries}", number=manifest.version + 1)
    yield put_index(name, new_index)
    rows = _with(manifest.rows, name, Row(new_index.revision, new_index.number, row.next))
    new = manifest._replace(version=manifest.version + 1, rows=rows, recent=(*manifest.recent, who))
    if (yield put_manifest(rules, Commit(who, new, ((name, "restore"),)))) == "refused":
        return Again(restore, (rules, who, name, snapshots, index, tries + 1))
    return Again(publish, (rules, Work(who, ((name, "set"),), (), ((name, Prepared("", new_index, 0, 0)),))))


# Readers.


def reader(rules: Rules, names: str) -> Process:
    """Read members of one manifest."""
    begin = yield _moment()
    manifest: Manifest = yield get_manifest()
    rows = dict(manifest.rows)
    found: list[tuple[str, History]] = []
    for name in names:
        if name in rows:
            index = yield (get_index(name, rows[name].revision) if rows[name].revision else get_published(name))
            history = yield from _history(name, index)
            if history is None:
                yield _gone(name, rows[name].revision)
                return None
            found.append((name, history))
        else:
            found.append((name, None))
    yield _compared(tuple(found), begin)
    return None


def reader_by_url(rules: Rules, name: str) -> Process:
    """Read a member by its URL: the published index tells of the group, whose row wins."""
    begin = yield _moment()
    index = yield get_published(name)
    if index is None:
        return None  # between a commit and its publication
    if index.noted and rules.rows_win:
        manifest = yield get_manifest()
        row = dict(manifest.rows).get(name)
        if row is None:
            return None
        if row.revision:
            index = yield get_index(name, row.revision)
    history = yield from _history(name, index)
    if history is None:
        yield _gone(name, "" if index is None else index.revision)
        return None
    yield _compared(((name, history),), begin)
    return None


def _history(name: str, index: Index | None) -> Process:
    """Read the chunks; None if something is gone."""
    if index is None:
        return None
    found = []
    for number, inside in zip(index.chunks, index.history, strict=True):
        content = inside if number == INSIDE else (yield get_chunk(name, number))
        if content is None:
            return None
        found.append(content)
    return tuple(found)


def _moment() -> Step:
    return Step("begin", lambda world: [(world, len(world.log))])


def _gone(name: str, revision: str) -> Step:
    """Raise ConflictError, which is right only for a state that is not listed any more."""

    def act(world: World) -> Outcomes:
        row = dict(world.manifest.rows).get(name)
        if row is not None and row.revision == revision and revision:
            world = world._replace(wrong=world.wrong | {f"a reader lacks a part of {revision}, which is listed"})
        return [(world, None)]

    return Step("raise ConflictError", act)


def _compared(found: tuple[tuple[str, History], ...], begin: int) -> Step:
    def act(world: World) -> Outcomes:
        for length in range(begin, len(world.log) + 1):
            if all(history_after(world.log[:length], name, ("0",)) == history for name, history in found):
                return [(world, None)]
        return [(world._replace(wrong=world.wrong | {f"a reader found {found}, which no moment had"}), None)]

    return Step("compare", act)


# Vacuum, and the network.


def vacuum(rules: Rules) -> Process:
    """Remove what neither rows nor snapshots need; everything is old."""
    manifest: Manifest = yield get_manifest()
    live = {(name, row.revision) for name, row in manifest.rows}
    if rules.snapshots_keep:
        live |= {(name, row.revision) for rows in manifest.snapshots for name, row in rows}
    plain = {name for name, row in manifest.rows if not row.revision}
    old = yield _unneeded(frozenset(live), frozenset(plain))
    if not old:
        return None
    if rules.vacuum_commits:
        if not rules.vacuum_looks_again:
            manifest = yield get_manifest()
        rows, floors = dict(manifest.rows), dict(manifest.floors)
        for what, name, number in old:
            if what == "chunk":
                floors[name] = max(floors.get(name, 0), number + 1)
                if name in rows:
                    rows[name] = rows[name]._replace(next=max(rows[name].next, number + 1))
        new = manifest._replace(
            version=manifest.version + 1,
            rows=tuple(sorted(rows.items())),
            floors=tuple(sorted(floors.items())),
            cleanings=manifest.cleanings + 1,
        )
        answer = yield put_manifest(rules, Commit("vacuum", new))
        if answer == "refused" and rules.vacuum_looks_again:
            return Again(vacuum, (rules,))
        if answer != "done":
            return None
    for what in old:
        yield _delete(what)
    return None


def _unneeded(live: frozenset[tuple[str, str]], plain: frozenset[str]) -> Step:
    """List the bucket, and read the indexes that are needed."""

    def act(world: World) -> Outcomes:
        wanted = [(name, index) for name, index in world.indexes if (name, index.revision) in live]
        wanted += [(name, index) for name, index in world.published if name in plain]
        needed = {(name, number) for name, index in wanted for number in index.chunks}
        old = [("chunk", name, number) for name, number, _ in world.chunks if (name, number) not in needed]
        old += [("index", name, index.revision) for name, index in world.indexes if (name, index.revision) not in live]
        return [(world, tuple(sorted(old, key=str)))]

    return Step("list", act)


def _delete(what: tuple[str, str, Any]) -> Step:
    """Remove an object, at once or late."""

    def act(world: World) -> Outcomes:
        outcomes = [(_without(world, what), None)]
        if world.losses:
            outcomes.append((world._replace(losses=world.losses - 1, late=world.late | {what}), None))
        return outcomes

    return Step(f"delete {what}", act)


def _without(world: World, what: tuple[str, str, Any]) -> World:
    kind, name, which = what
    if kind == "chunk":
        return world._replace(chunks=frozenset(each for each in world.chunks if each[:2] != (name, which)))
    left = frozenset(each for each in world.indexes if (each[0], each[1].revision) != (name, which))
    return world._replace(indexes=left)


def network(rules: Rules) -> Process:
    """Deliver what comes late, or never."""

    def act(world: World) -> Outcomes:
        outcomes: list[tuple[World, str]] = [(world, "nothing")]
        for request in world.late:
            left = world._replace(late=world.late - {request})
            if not isinstance(request, Commit):
                outcomes.append((_without(left, request), "delivered"))
            elif request.fits(world, rules):
                outcomes.append((request.done(left), "delivered"))
        return outcomes

    yield Step("deliver", act)
    return None


# What must hold.


def always(world: World) -> Iterator[str]:
    """Name what is wrong with a bucket at any moment."""
    yield from world.wrong
    for who in world.refused:
        if any(commit == who for commit, _ in world.log):
            yield f"{who} was told that nothing has happened, and it has"
    for name, row in world.manifest.rows:
        if row.revision:
            expected = history_after(world.log, name, ("0",))
            yield from _damage(world, name, row.revision, expected)
    for rows in world.manifest.snapshots:
        for name, row in rows:
            yield from _damage(world, name, row.revision, None)


def _damage(world: World, name: str, revision: str, expected: History) -> Iterator[str]:
    index = next((i for m, i in world.indexes if (m, i.revision) == (name, revision)), None)
    if index is None:
        yield f"there is no index of a revision of {name} that is listed"
        return
    contents = {number: content for each, number, content in world.chunks if each == name}
    pairs = zip(index.chunks, index.history, strict=True)
    found = tuple(inside if number == INSIDE else contents.get(number, "gone") for number, inside in pairs)
    if found != index.history:
        yield f"a listed revision of {name} has chunks of others, or lacks some"
    if expected is not None and index.history != expected:
        yield f"a change of {name} is lost"


def at_the_end(world: World, killed: frozenset[str]) -> Iterator[str]:
    """Name what is wrong when everybody has ended."""
    committed = {commit for commit, _ in world.log}
    for who in world.acknowledged - committed:
        yield f"{who} was told that it has committed, and it has not"
    published, rows = dict(world.published), dict(world.manifest.rows)
    # One that deletes may remove, late, what another one has published in the same place since.
    again = {name for _, changes in world.log for name, kind in changes if kind == "delete"}
    for name, row in rows.items():
        there = published.get(name)
        if not row.revision:
            if there is None or there.history != history_after(world.log, name, ("0",)):
                yield f"a change of {name} is lost"
        elif _all_told(world) and name not in again and (there is None or there.revision != row.revision):
            yield f"the published index of {name} is another one though nobody was killed"
    # One that makes or changes a member may leave an index that is not listed. Its note tells readers of the group.
    touched = [name for _, changes in world.log for name, _ in changes]
    only_deleted = {name for name in again if touched.count(name) == 1}
    for name, there in published.items():
        if name not in rows and not there.noted and world.manifest.is_complete:
            yield f"{name} was deleted, and can be opened by its URL for ever"
        elif name not in rows and name in only_deleted and _all_told(world) and {*there.history} <= {"0", *committed}:
            yield f"{name} was deleted, and its index stays published though nobody was killed"
    yield from _vain_changes(world)
    if len(world.log) != len(committed):
        yield "a commit has happened twice"


def _vain_changes(world: World) -> Iterator[str]:
    """Name the commits that have changed a member after it was deleted."""
    for n, (commit, changes) in enumerate(world.log):
        for name, kind in changes:
            if kind in ("append", "whole") and history_after(world.log[:n], name, ("0",)) is None:
                yield f"{commit} was acknowledged, and nothing has its change of {name}"


def _all_told(world: World) -> bool:
    """Whether each commit ended by telling its user, so that it was published."""
    return all(commit in world.acknowledged for commit, _ in world.log)


def without(rule: str) -> Rules:
    """Return the rules without one."""
    return replace(Rules(), **{rule: False})
