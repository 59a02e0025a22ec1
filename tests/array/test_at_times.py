"""Snapshots that a moment stands for."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta, timezone
from types import SimpleNamespace

import numpy as np
import pytest

import b2array
from b2array.array.at_times import name_of, open_found


def taken(*when: str) -> SimpleNamespace:
    """Return something with snapshots of these times, named by numbers."""
    infos = [
        SimpleNamespace(name=str(n), time=datetime.fromisoformat(text).replace(tzinfo=UTC))
        for n, text in enumerate(when)
    ]
    return SimpleNamespace(url="x.b2nd", snapshots=infos)


KEPT = taken("2026-11-25T12:00", "2026-11-26T12:00", "2026-11-26T23:59:59.5", "2026-11-27T00:00", "2026-11-27T00:00")


@pytest.mark.parametrize(
    ("at", "name"),
    [
        (date(2026, 11, 25), "0"),
        ("2026-11-26", "2"),
        (date(2026, 11, 26), "2"),
        ("2026-11-26T12:00", "1"),
        (datetime(2026, 11, 26, 11, 59, tzinfo=UTC), "0"),
        (datetime(2026, 11, 26, 13, tzinfo=timezone(timedelta(hours=1))), "1"),
        ("2026-11-26T13:59+02:00", "0"),
        (datetime(2030, 1, 1), "4"),  # noqa: DTZ001 - in UTC
    ],
)
def test_a_moment_stands_for_the_latest_snapshot_until_then(at: str | date, name: str) -> None:
    assert name_of(at, lambda: KEPT) == name


def test_a_name_goes_before_a_moment() -> None:
    named = taken("2026-01-01")
    named.snapshots[0].name = "2020-01-01"
    assert name_of("2020-01-01", lambda: named) == "2020-01-01"
    assert name_of("spin-up", lambda: pytest.fail("a name needs no look")) == "spin-up"


def test_a_moment_before_all_snapshots_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"no snapshot from before .*; the oldest is '0' of 2026-11-25T12:00"):
        name_of("2026-11-24", lambda: KEPT)
    with pytest.raises(KeyError, match="it has none"):
        name_of(date(2026, 1, 1), lambda: taken())
    with pytest.raises(TypeError, match="not int"):
        name_of(5, lambda: KEPT)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("place", ["local", "memory"])
def test_arrays_groups_and_members_open_at_a_moment(tmp_path, inside: bool, place: str) -> None:
    root = str(tmp_path) if place == "local" else f"memory://{tmp_path.name}"
    group = b2array.open_group(f"{root}/g.b2d", "w")
    array = group.create("x", (3,), "i4") if inside else b2array.zeros(3, "i4", url=f"{root}/x.b2nd")
    owner = group if inside else array
    owner.snapshot("first")
    time.sleep(0.01)
    between = datetime.now(UTC)
    time.sleep(0.01)
    array[:] = 1
    owner.snapshot("second")
    array[:] = 2
    url = f"{root}/g.b2d/x" if inside else f"{root}/x.b2nd"
    for opened in (b2array.open(url, at=between), b2array.open_array(url, at=between.isoformat())):
        assert opened[:].tolist() == [0, 0, 0]
    assert b2array.open(url, at=datetime.now(UTC))[:].tolist() == [1, 1, 1]
    assert b2array.open(url, at="second")[:].tolist() == [1, 1, 1]
    if inside:
        assert b2array.open_group(f"{root}/g.b2d", at=between)["x"][:].tolist() == [0, 0, 0]
        assert np.array_equal(b2array.open(f"{root}/g.b2d", at=between)["x"], [0, 0, 0])
    with pytest.raises(KeyError, match="no snapshot from before"):
        b2array.open(url, at="2020-01-01")
    with pytest.raises(ValueError, match="goes with mode 'r' alone"):
        b2array.open(url, "r+", at=between)


def test_a_snapshot_that_writers_drop_and_make_again_is_found_by_its_time() -> None:
    drops = iter([True, True, True, False])

    def open_named(name: str) -> str:
        """Open the snapshot of this name, unless a writer has dropped it and not made it again yet."""
        if next(drops):
            raise KeyError(name)
        return name

    assert open_found("s", lambda: "s", open_named) == "s"


def test_what_a_snapshot_lacks_is_an_error_after_some_looks() -> None:
    looks = []

    def open_named(name: str) -> None:
        looks.append(name)
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        open_found("s", lambda: "s", open_named)
    assert 1 < len(looks) < 20
