"""The list of a group's snapshots, as transactions change it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from b2array import open_group
from b2array.errors import ConflictError, FormatError
from b2array.group.listed_group import group_at


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a group with two members and a snapshot."""
    url = str(tmp_path / "g.b2d") if request.param == "local" else f"memory://{tmp_path.name}.b2d"
    group = open_group(url, "w")
    with group.transaction() as changes:
        changes["x"], changes["y"] = np.arange(4), np.arange(4)
    group.snapshot("start")
    return url


def test_a_damaged_ledger_stops_only_transactions_with_snapshots(url: str) -> None:
    group_at(url, {}).update_manifest(lambda manifest: replace(manifest, kept=b"\xc1"))
    group = open_group(url, "r+")
    with group.transaction() as changes:
        changes["x"][0] = 7
        changes["y"][0] = 8
        changes["z"] = [9]
    assert [group[name][0] for name in ("x", "y", "z")] == [7, 8, 9]
    for change in (group.snapshot, group.restore, group.drop_snapshot):
        with pytest.raises(FormatError, match="expected a ledger of kept states"):
            change("start")


def test_members_go_back_only_to_a_snapshot_that_is_still_there(url: str) -> None:
    group = open_group(url, "r+")
    group["x"][0] = 7
    with pytest.raises(ConflictError, match="has dropped the snapshot 'start'"), group.transaction() as changes:  # noqa: PT012
        changes.restore("start")
        open_group(url, "r+").drop_snapshot("start")
    assert open_group(url)["x"][0] == 7


def test_a_snapshot_that_another_writer_has_replaced_is_not_dropped(url: str) -> None:
    group = open_group(url, "r+")
    with pytest.raises(ConflictError, match="has replaced the snapshot 'start'"), group.transaction() as changes:  # noqa: PT012
        changes.drop_snapshot("start")
        open_group(url, "r+").snapshot("start", "later", replace=True)
    (entry,) = open_group(url).snapshots
    assert entry.message == "later"


def test_a_dropped_name_is_free_in_the_same_transaction(url: str) -> None:
    group = open_group(url, "r+")
    group["x"][0] = 7
    with group.transaction() as changes:
        with pytest.raises(FileExistsError, match="has a snapshot 'start'"):
            changes.snapshot("start")
        changes.drop_snapshot("start")
        changes.snapshot("start")
        with pytest.raises(FileExistsError, match="makes a snapshot 'start' already"):
            changes.snapshot("start")
        with pytest.raises(KeyError):
            changes.drop_snapshot("start")
    assert open_group(url, at="start")["x"][0] == 7
