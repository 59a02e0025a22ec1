"""A bounded checker: it tries each order in which the steps of a few processes can happen, and kills some of them.

A process is a generator. It yields steps and is sent their results. A step is a function of the world, which never
changes: it returns each (world, result) that can come of it, none while it must wait. A process that ends with `Again`
goes on as another generator; what it knew before is forgotten, so that equal situations are met once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

World = Any
Outcomes = Sequence[tuple[World, Hashable]]


class Step(NamedTuple):
    """What a process does next. `label` stands in traces."""

    label: str
    act: Callable[[World], Outcomes]


class Again(NamedTuple):
    """How a process goes on: as the generator that a function makes of these arguments."""

    function: Callable[..., Process]
    arguments: tuple[Hashable, ...]


Process = Generator[Step, Any, "Again | None"]


class _Position(NamedTuple):
    """How far a process has come: the results that its generator was sent."""

    function: Callable[..., Process]
    arguments: tuple[Hashable, ...]
    results: tuple[Hashable, ...]


_ENDED, _KILLED = "ended", "killed"


@dataclass(frozen=True, slots=True)
class Report:
    """How many situations there are, and what is wrong: a problem with the shortest trace that was met."""

    situations: int
    problems: Mapping[str, tuple[str, ...]]

    def __str__(self) -> str:
        lines = [f"{self.situations} situations"]
        for problem, trace in self.problems.items():
            lines += [problem, *(f"    {line}" for line in trace)]
        return "\n".join(lines)


def _none(_: World) -> Iterable[str]:
    return ()


def explore(
    world: World,
    processes: Mapping[str, Again],
    *,
    always: Callable[[World], Iterable[str]] = _none,
    at_the_end: Callable[[World, frozenset[str]], Iterable[str]],
    mortal: Iterable[str] = (),
    kills: int = 1,
    bury: Callable[[World, str], World] = lambda world, _: world,
    most: int = 2_000_000,
) -> Report:
    """Try all orders.

    Parameters
    ----------
    world : object
        What all processes share, hashable.
    processes : mapping of str to Again
        How each begins.
    always : callable
        Names what is wrong with a world at any moment.
    at_the_end : callable
        Names what is wrong when nobody can do anything more; gets the names of those that were killed.
    mortal : iterable of str
        Processes that may be killed between two steps, `kills` of them in all.
    bury : callable
        Changes the world as the system does when a process is killed, for example frees its locks.
    """
    search = _Search(dict(processes), {*mortal}, bury)
    first = _Situation(world, search.beginning(), kills)
    came: dict[_Situation, tuple[_Situation | None, str]] = {first: (None, "")}
    waiting, problems = [first], dict[str, tuple[str, ...]]()

    def note(problem: str, situation: _Situation | None) -> None:
        trace: list[str] = []
        while situation is not None:
            situation, label = came[situation]
            trace.append(label)
        lines = tuple(reversed(trace[:-1]))
        if problem not in problems or len(lines) < len(problems[problem]):
            problems[problem] = lines

    while waiting:
        situation = waiting.pop()
        moves = 0
        for after, label, is_move in search.successors(situation):
            moves += is_move
            if after not in came:
                came[after] = situation, label
                waiting.append(after)
                for problem in always(after.world):
                    note(problem, after)
        if not moves:
            for problem in [*at_the_end(situation.world, search.killed(situation)), *search.stuck(situation)]:
                note(problem, situation)
        if len(came) > most:
            raise RuntimeError(f"more than {most} situations")
    return Report(len(came), problems)


class _Situation(NamedTuple):
    """The world, how far each process has come, and how many may still be killed."""

    world: World
    positions: tuple[_Position | str, ...]
    kills: int


class _Search:
    """Finds what can come next."""

    def __init__(
        self, processes: Mapping[str, Again], mortal: Collection[str], bury: Callable[[World, str], World]
    ) -> None:
        self._processes, self._names = processes, [*processes]
        self._mortal, self._bury = mortal, bury
        self._steps: dict[_Position, Step] = {}

    def beginning(self) -> tuple[_Position | str, ...]:
        """Return where all processes are before their first step."""
        return tuple(self._settled(_Position(*each, ())) for each in self._processes.values())

    def _settled(self, position: _Position) -> _Position | str:
        """Go on to where a process yields its next step."""
        while position not in self._steps:
            generator = position.function(*position.arguments)
            try:
                step = next(generator)
                for result in position.results:
                    step = generator.send(result)
            except StopIteration as end:
                if end.value is None:
                    return _ENDED
                position = _Position(end.value.function, end.value.arguments, ())
            else:
                self._steps[position] = step
        return position

    def successors(self, situation: _Situation) -> Iterator[tuple[_Situation, str, bool]]:
        """Yield each situation that can come next, what happens, and whether that is a step or a kill."""
        world, positions, kills = situation
        for n, position in enumerate(positions):
            if not isinstance(position, _Position):
                continue
            name, step = self._names[n], self._steps[position]
            before, behind = positions[:n], positions[n + 1 :]
            for after, result in step.act(world):
                come = self._settled(position._replace(results=(*position.results, result)))
                yield _Situation(after, (*before, come, *behind), kills), f"{name}: {step.label} -> {result}", True
            if kills and name in self._mortal:
                gone = _Situation(self._bury(world, name), (*before, _KILLED, *behind), kills - 1)
                yield gone, f"{name} is killed", False

    def killed(self, situation: _Situation) -> frozenset[str]:
        """Return the names of the processes that were killed."""
        pairs = zip(self._names, situation.positions, strict=True)
        return frozenset(name for name, position in pairs if position == _KILLED)

    def stuck(self, situation: _Situation) -> Iterator[str]:
        """Name the processes that have not ended."""
        for name, position in zip(self._names, situation.positions, strict=True):
            if isinstance(position, _Position):
                yield f"{name} waits for ever"
