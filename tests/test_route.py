"""The routes of reads, writes and opening lead one way: no two modules on a route call each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_imports import ALLOWED

from asv_bench import routes
from b2array import config

# A class and the one that it extends are in two modules, but say one thing.
BOTH_WAYS = {name: {("store.base", "store.local_store")} for name in ("open", "point of a file just opened")}

ACTIONS = (
    "slice of a line",
    "slice of a line, cached",
    "slab of sixteen blocks",
    "slab of sixteen blocks, cached",
    "point",
    "point, cached",
    "assignment",
    "point of a file just opened",
    "open",
    "fill value",
    "dims",
    "attribute",
)


@pytest.mark.parametrize("name", ACTIONS)
def test_no_route_goes_back_and_forth_between_two_modules(name: str, tmp_path: Path) -> None:
    action = routes.actions(tmp_path)[name]
    with config.using(threads=1, cache_bytes=action.cache_bytes):
        found = routes.route(action.run)
    assert found.calls > 0
    assert found.pairs <= BOTH_WAYS.get(name, set())


# The calls into a package above. These shall become fewer.
OF_CHUNKS = {
    ("frame.fetch", "commit.draft"),
    ("store.local_store", "commit.staging"),
    ("store.upload", "commit.staging"),
}
"""A source is read, or pieces are written, through an object of the commit that was passed down."""
OF_OTHERS = {
    ("display.text_tables", "group.group"),
    ("store.forces", "commit.leftovers"),
    ("store.upload", "commit.outcomes"),
}
"""A table shows a handle, and the store calls what was to follow when the bytes were on the disk or sent."""
MOST_CLIMBS = {
    "assignment to a member": 2,
    "transaction of two members": 3,
    "replacement of a member": 2,
    "assignment to a member in an object store": 2,
    "transaction of two members in an object store": 2,
    "replacement of a member in an object store": 1,
}


@pytest.mark.parametrize("name", MOST_CLIMBS)
def test_commits_of_groups_call_packages_above_in_known_places_only(name: str, tmp_path: Path) -> None:
    action = routes.group_actions(tmp_path)[name]
    with config.using(threads=1, cache_bytes=action.cache_bytes):
        found = routes.route(action.run)
    assert found.climbs <= OF_CHUNKS | OF_OTHERS
    assert 0 < len(found.climbs) <= MOST_CLIMBS[name]


@pytest.mark.parametrize("name", ACTIONS)
def test_routes_of_arrays_alone_climb_only_to_what_reads_and_writes_chunks(name: str, tmp_path: Path) -> None:
    action = routes.actions(tmp_path)[name]
    with config.using(threads=1, cache_bytes=action.cache_bytes):
        assert routes.route(action.run).climbs <= OF_CHUNKS


def test_every_layer_is_a_package_and_every_commit_of_a_group_is_followed(tmp_path: Path) -> None:
    packages = {path.parent.name for path in routes.PACKAGE.glob("*/__init__.py")}
    assert set(routes.HEIGHTS) == packages
    for package, below in ALLOWED.items():
        assert all(routes.HEIGHTS[each] < routes.HEIGHTS[package] for each in below & routes.HEIGHTS.keys())
    assert set(routes.group_actions(tmp_path)) == set(MOST_CLIMBS)


def test_every_action_that_the_program_follows_is_checked_here(tmp_path: Path) -> None:
    assert set(routes.actions(tmp_path)) == set(ACTIONS)


def test_modules_that_call_each_other_are_found(tmp_path: Path) -> None:
    # Without a pair somewhere, the test above would pass if it saw none at all.
    found = routes.route(routes.actions(tmp_path)["point of a file just opened"].run)
    assert found.pairs == {("store.base", "store.local_store")}


# A few more than there are: they shall become fewer.
MOST_CALLS = {"assignment": 580, "assignment to a member": 675, "transaction of two members": 1697}


@pytest.mark.parametrize("name", MOST_CALLS)
def test_a_local_write_takes_few_calls(name: str, tmp_path: Path) -> None:
    action = (routes.actions(tmp_path) | routes.group_actions(tmp_path))[name]
    with config.using(threads=1, cache_bytes=action.cache_bytes):
        assert 0 < routes.route(action.run).calls <= MOST_CALLS[name]
