"""The protocols of commits, in all orders of their steps, with kills; and without one of their rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import log_protocol as log
import pytest
import rows_protocol as rows
from checker import Again, Report, explore
from rows_protocol import Rules

from b2array.catalog.redo import TABLE, Action, Standing


def commits(rules: Rules, **kinds: str) -> Mapping[str, Again]:
    """Return writers: `T="append x, set y"`."""
    processes = {}
    for who, text in kinds.items():
        pairs = tuple(tuple(reversed(each.split())) for each in text.split(", "))
        processes[who] = Again(rows.writer, (rules, who, pairs))
    return processes


def tried(name: str, rules: Rules) -> Report:
    """Try all orders of what a scenario has."""
    world, processes, options = SCENARIOS[name](rules)
    return explore(world, processes, always=rows.always, at_the_end=rows.at_the_end, **options)


def writers(rules: Rules) -> Any:
    processes = commits(rules, T="append x, append y", W="append x")
    return rows.bucket(), processes, {"mortal": "TW", "kills": 2}


def readers(rules: Rules) -> Any:
    processes = {**commits(rules, T="append x, append y", W="append x"), "R": Again(rows.reader, (rules, "xy"))}
    return rows.bucket(), processes, {"mortal": "T"}


def readers_by_url(rules: Rules) -> Any:
    processes = {**commits(rules, T="append x", W="set x"), "R": Again(rows.reader_by_url, (rules, "x"))}
    return rows.bucket(members="x"), processes, {"mortal": "TW"}


def adoption(rules: Rules) -> Any:
    processes = {**commits(rules, T="append x, append y"), "H": Again(rows.by_itself, (rules, "H", "x"))}
    return rows.bucket(adopted=False), processes, {"mortal": "TH"}


def overwriting(rules: Rules) -> Any:
    processes = {**commits(rules, T="append x, append y"), "O": Again(rows.overwriter, (rules, "O", "x"))}
    return rows.bucket(adopted=False), processes, {"mortal": "TO"}


def lost_answers(rules: Rules) -> Any:
    processes = {**commits(rules, T="append x", W="append x"), "network": Again(rows.network, (rules,))}
    return rows.bucket(members="x", losses=1), processes, {"mortal": "T"}


def reads(rules: Rules) -> Any:
    return rows.bucket(), commits(rules, T="read x, append y", W="read y, append x"), {"mortal": "T"}


def snapshots(rules: Rules) -> Any:
    processes = {**commits(rules, T="append x, append y"), "S": Again(rows.snapshot, (rules, "S"))}
    return rows.bucket(), processes, {"mortal": "TS"}


def snapshots_and_vacuum(rules: Rules) -> Any:
    processes = {**commits(rules, W="set x"), "S": Again(rows.snapshot, (rules, "S"))}
    return rows.bucket(members="x"), {**processes, "V": Again(rows.vacuum, (rules,))}, {"mortal": "WV"}


def restored_and_dropped(rules: Rules) -> Any:
    world = rows.bucket(members="x")
    index = rows.Index("x1", 1, True, ("W",), (1,))
    row = rows.Row("x1", 1, 2)
    manifest = world.manifest._replace(version=1, rows=(("x", row),), snapshots=(world.manifest.rows,))
    world = world._replace(
        manifest=manifest,
        chunks=world.chunks | {("x", 1, "W")},
        indexes=world.indexes | {("x", index)},
        published=(("x", index),),
        log=(("W", (("x", "set"),)),),
        acknowledged=frozenset("W"),
    )
    processes = {"D": Again(rows.dropper, (rules, "D")), "B": Again(rows.restorer, (rules, "B", "x"))}
    return world, {**processes, "V": Again(rows.vacuum, (rules,))}, {"mortal": "BV"}


def vacuum(rules: Rules) -> Any:
    processes = {**commits(rules, T="append x", W="set x"), "V": Again(rows.vacuum, (rules,))}
    return rows.bucket(members="x"), processes, {"mortal": "T"}


def vacuum_of_contiguous(rules: Rules) -> Any:
    processes = {**commits(rules, T="whole x", W="whole y"), "V": Again(rows.vacuum, (rules,))}
    return rows.bucket(), processes, {"mortal": "T"}


def vacuum_and_readers(rules: Rules) -> Any:
    processes = {**commits(rules, W="set x"), "V": Again(rows.vacuum, (rules,)), "R": Again(rows.reader, (rules, "x"))}
    return rows.bucket(members="x"), processes, {"mortal": "V"}


def made_again(rules: Rules) -> Any:
    processes = commits(rules, D="delete x", M="make x", N="make x")
    return rows.bucket(members="x"), processes, {"mortal": "DM", "kills": 2}


def made_again_and_vacuum(rules: Rules) -> Any:
    processes = {**commits(rules, D="delete x", M="make x"), "V": Again(rows.vacuum, (rules,))}
    return rows.bucket(members="x"), processes, {"mortal": "M"}


def late_deletions(rules: Rules) -> Any:
    world = rows.bucket(members="x")
    gone = ("chunk", "x", 0)
    chunks = frozenset({("x", 1, "0")})
    index = rows.Index("x0", 0, True, ("0",), (1,))
    manifest = world.manifest._replace(rows=(("x", rows.Row("x0", 0, 2)),))
    world = world._replace(
        manifest=manifest,
        chunks=chunks,
        indexes=frozenset({("x", index)}),
        published=(("x", index),),
        late=frozenset({gone}),
    )
    processes = {**commits(rules, D="delete x", M="make x"), "network": Again(rows.network, (rules,))}
    return world, processes, {"mortal": "D"}


def deletion(rules: Rules) -> Any:
    processes = {**commits(rules, D="delete x"), "H": Again(rows.by_itself, (rules, "H", "x"))}
    return rows.bucket(members="x", adopted=False), processes, {"mortal": "DH"}


def first_deletion(rules: Rules) -> Any:
    processes = {**commits(rules, D="delete x"), "H": Again(rows.by_itself, (rules, "H", "x"))}
    return rows.bucket(members="x", adopted=False, listed=False), processes, {"mortal": "D"}


def lost_deletion(rules: Rules) -> Any:
    processes = {**commits(rules, D="delete x", W="append y"), "network": Again(rows.network, (rules,))}
    return rows.bucket(losses=1), processes, {"mortal": "W"}


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        writers,
        readers,
        readers_by_url,
        adoption,
        overwriting,
        lost_answers,
        reads,
        snapshots,
        snapshots_and_vacuum,
        restored_and_dropped,
        vacuum,
        vacuum_of_contiguous,
        vacuum_and_readers,
        made_again,
        made_again_and_vacuum,
        late_deletions,
        deletion,
        first_deletion,
        lost_deletion,
    )
}


LONG = ("readers", "readers_by_url", "vacuum")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in SCENARIOS]
)
def test_rows_hold_in_all_orders(name: str) -> None:
    report = tried(name, Rules())
    assert not report.problems, str(report)
    assert report.situations > 100


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("conditional", "writers"),
        ("adopts", "adoption"),
        ("overwrites_what_it_saw", "overwriting"),
        ("rebases", "writers"),
        ("finds_lost_answers", "lost_answers"),
        ("reads_are_checked", "reads"),
        ("rows_win", "readers_by_url"),
        ("publishes_newer", "writers"),
        ("publishes_again", "writers"),
        ("numbers_rise", "late_deletions"),
        ("vacuum_looks_again", "vacuum_of_contiguous"),
        ("vacuum_commits", "vacuum_of_contiguous"),
        ("floor_counts", "made_again_and_vacuum"),
        ("indexes_are_checked", "vacuum_of_contiguous"),
        ("restores_what_is_kept", "restored_and_dropped"),
        ("snapshots_keep", "snapshots_and_vacuum"),
        ("adopts_what_goes", "deletion"),
        ("adopts_what_goes", "first_deletion"),
        ("unlists_completed_rows", "first_deletion"),
        ("remembers_what_goes", "lost_deletion"),
    ],
)
@pytest.mark.slow
def test_without_one_rule_the_checker_finds_what_it_is_for(rule: str, name: str) -> None:
    assert tried(name, rows.without(rule)).problems


# Local disks.

KINDS = ("patch", "index", "frame", "delete")


def on_disk(rules: log.Rules, processes: Mapping[str, Again], kills: int = 2, names: str = "xy") -> Report:
    """Try all orders of processes, and let the next writer apply what they have left."""
    writers = tuple(name for name in processes if name != "R")
    processes = {**processes, "next": Again(log.last, (rules, writers))}
    return explore(
        log.disk(names),
        processes,
        always=log.always,
        at_the_end=log.at_the_end,
        bury=log.bury,
        mortal=writers,
        kills=kills,
    )


def transaction(rules: log.Rules, who: str = "T", **kinds: str) -> Again:
    return Again(log.transaction, (rules, who, tuple(kinds.items())))


def with_writers(rules: log.Rules, kind: str) -> Report:
    others = {"W": Again(log.alone, (rules, "W", "x", "patch")), "R": Again(log.reader, (rules, "x"))}
    return on_disk(rules, {"T": transaction(rules, x=kind, y="patch"), **others})


def with_other_software(rules: log.Rules, kind: str) -> Report:
    others = {"F": Again(log.foreign, ("F", "x", "patch")), "W": Again(log.alone, (rules, "W", "x", "index"))}
    return on_disk(rules, {"T": transaction(rules, x=kind, y="index"), **others})


def with_other_software_alone(rules: log.Rules, kind: str) -> Report:
    """Nobody is killed: an acknowledged commit is there, and what other software has appended is on top of it."""
    processes = {"T": transaction(rules, x=kind, y="index"), "F": Again(log.foreign, ("F", "x", "patch"))}
    return explore(log.disk(), processes, at_the_end=log.not_lost, bury=log.bury, kills=0)


def with_a_replacement_alone(rules: log.Rules, kind: str) -> Report:
    """A member is replaced by a frame of the other layout, without a transaction."""
    others = {"W": Again(log.alone, (rules, "W", "x", "patch")), "U": transaction(rules, "U", x=kind)}
    return on_disk(rules, {"T": Again(log.replacement, (rules, "T", "x")), **others}, kills=1, names="x")


def with_transactions(rules: log.Rules, kind: str) -> Report:
    other = transaction(rules, "U", x="frame", y="index")
    return on_disk(rules, {"T": transaction(rules, x=kind, y="patch"), "U": other})


def with_replacement(rules: log.Rules, kind: str) -> Report:
    """Somebody who knows no log puts another frame there."""
    others = {"F": Again(log.replaced, ("F", "x")), "W": Again(log.alone, (rules, "W", "x", "patch"))}
    return on_disk(rules, {"T": transaction(rules, x=kind, y="patch"), **others})


def with_everybody(rules: log.Rules, kind: str) -> Report:
    others = {"F": Again(log.foreign, ("F", "x", "patch")), "W": Again(log.alone, (rules, "W", "x", "patch"))}
    others["U"] = transaction(rules, "U", x="index", y="patch")
    return on_disk(rules, {"T": transaction(rules, x=kind, y="patch"), **others})


def with_snapshot(rules: log.Rules, kind: str) -> Report:
    others = {"S": Again(log.snapshot, (rules, "S", "xy")), "C": Again(log.compaction, (rules, "C", "x"))}
    return on_disk(rules, {"P": Again(log.causal, ("P", "xy")), **others}, kills=1)


def with_a_member_that_is_read(rules: log.Rules, kind: str) -> Report:
    others = {"F": Again(log.foreign, ("F", "x", "index")), "W": Again(log.alone, (rules, "W", "x", "patch"))}
    return on_disk(rules, {"T": Again(log.dependent, (rules, "T", "x", "y", kind)), **others})


STANDINGS = {"before": "BEFORE", "after": "AFTER", "nothing": "NOTHING", "another": "OTHER", "damaged": "DAMAGED"}
ACTIONS = {
    "write if the tail is there": Action.WRITE,
    "rename in": Action.PUT,
    "swap": Action.PUT,
    "rename out": Action.TAKE_OUT,
}


@pytest.mark.parametrize(("found", "kind"), log.TABLE)
def test_the_model_has_the_table_of_the_code(found: log.Found, kind: log.Kind) -> None:
    action = log.TABLE[found, kind]
    of_code = TABLE[Standing[STANDINGS[found]], True][kind]
    assert of_code is ACTIONS[action] if action in ACTIONS else not of_code.is_pending


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "attempt", [with_writers, with_other_software, with_transactions, with_replacement, with_a_member_that_is_read]
)
def test_the_log_holds_in_all_orders(attempt: Any, kind: str) -> None:
    report = attempt(log.Rules(), kind)
    assert not report.problems, str(report)
    assert report.situations > 100


@pytest.mark.parametrize("kind", ["patch", "index"])
@pytest.mark.parametrize("attempt", [with_other_software_alone, with_a_replacement_alone])
def test_the_log_holds_in_all_orders_of_single_writers(attempt: Any, kind: str) -> None:
    report = attempt(log.Rules(), kind)
    assert not report.problems, str(report)
    assert report.situations > 50


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_log_holds_for_a_crowd(kind: str) -> None:
    report = with_everybody(log.Rules(), kind)
    assert not report.problems, str(report)


def test_local_snapshots_hold_in_all_orders() -> None:
    report = with_snapshot(log.Rules(), "index")
    assert not report.problems, str(report)
    assert report.situations > 1000


@pytest.mark.parametrize(
    ("rule", "attempt", "kind"),
    [
        ("applies_first", with_writers, "index"),
        ("recovers_first", with_transactions, "patch"),
        ("applies_before_clearing", with_writers, "index"),
        ("stages_first", with_writers, "frame"),
        ("reads_the_log", with_writers, "patch"),
        ("takes_the_manifest_first", with_writers, "patch"),
        ("frees_the_second_name", with_writers, "delete"),
        ("compares_again", with_snapshot, "index"),
        ("compacts_under_the_manifest", with_snapshot, "index"),
        ("compacts_for_snapshots", with_snapshot, "index"),
        ("applies_under_its_locks", with_other_software_alone, "patch"),
        ("applies_under_its_locks", with_other_software_alone, "index"),
        ("looks_under_the_lock", with_writers, "patch"),
        ("lists_two_steps", with_a_replacement_alone, "patch"),
        ("compares_what_was_read", with_a_member_that_is_read, "index"),
        ("locks_what_was_read", with_a_member_that_is_read, "index"),
    ],
)
@pytest.mark.slow
def test_without_one_rule_of_the_log_the_checker_finds_what_it_is_for(rule: str, attempt: Any, kind: str) -> None:
    assert attempt(log.without(rule), kind).problems


@pytest.mark.parametrize(
    ("found", "kind", "action", "attempt"),
    [
        *(("before", kind, "leave", with_writers) for kind in KINDS),
        ("before", "patch", "write", with_other_software),
        ("damaged", "patch", "leave", with_writers),
        ("nothing", "frame", "leave", with_transactions),
        ("another", "patch", "write", with_other_software),
        ("another", "index", "rename in", with_other_software),
        ("another", "frame", "swap", with_replacement),
        ("another", "delete", "rename out", with_replacement),
    ],
)
def test_with_another_action_in_its_table_the_checker_finds_what_goes_wrong(
    found: log.Found, kind: log.Kind, action: str, attempt: Any
) -> None:
    assert attempt(log.changed(found, kind, action), kind).problems
