"""What readers and writers of groups conclude from a server that refuses reads: never that anything is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import pytest
from clouds import Cloud, Gate, Request, gate_to
from operations import Killed, Operations

import b2array
from b2array import open_group
from b2array.catalog.manifest import DATA, MANIFEST
from b2array.store.open import open_store

pytestmark = pytest.mark.filterwarnings("ignore:.*is rewritten with every change")


class Place(NamedTuple):
    """A group whose member ``x`` has a committed state, 7, that was never published, and a snapshot of the state 0."""

    url: str
    options: dict[str, Any]
    gate: Gate

    @property
    def member(self) -> str:
        return f"{self.url}/x.b2nd"

    def group(self, **options: Any) -> b2array.Group:
        return open_group(self.url, **options, **self.options)

    def refuse(self, *parts: str, may_list: bool) -> None:
        """Refuse each read of an object with one of these parts in its name, and perhaps each listing."""

        def rule(_: int, request: Request) -> int | None:
            path = request.partition("?")[0]
            is_refused = not may_list if request.lists else any(part in path for part in parts)
            return 403 if request.reads and is_refused else None

        self.gate.arm(rule)


def after_the_manifest() -> Callable[[int, str, Callable[[], Any]], Any]:
    """Kill a writer once it has written the manifest, before it publishes the states of the members."""
    written: list[str] = []

    def meet(_: int, name: str, call: Callable[[], Any]) -> Any:
        if written:
            raise Killed
        result = call()
        if name == "replace":
            written.append(name)
        return result

    return meet


@pytest.fixture(params=["sparse", "contiguous"])
def layout(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["s3", "gcs"])
def place(
    request: pytest.FixtureRequest, layout: Any, cloud_of: Callable[[str], Cloud], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """The group in an object store behind a gate."""
    cloud, operations = cloud_of(request.param), Operations()
    url, direct = cloud.make_bucket(f"refused-{uuid4()}") + "/g.b2d", {"storage_options": cloud.options}
    operations.listen(type(open_store(url, **direct)), monkeypatch)
    group = open_group(url, "w", **direct)
    group.create("x", data=np.zeros(8), chunks=(2,), layout=layout)
    group["y"] = [1.0]
    group.snapshot("then")
    with pytest.raises(Killed):
        operations.watch(lambda: group["x"].__setitem__(slice(None), 7), after_the_manifest())
    with gate_to(cloud) as (gate, endpoint):
        yield Place(url, {"storage_options": cloud.through(endpoint)}, gate)


MAY_LIST = pytest.mark.parametrize("may_list", [True, False])


@MAY_LIST
def test_a_group_that_was_read_does_not_lose_its_manifest(place: Place, *, may_list: bool) -> None:
    group = place.group()
    x = group["x"]
    assert x[...].tolist() == [7.0] * 8
    place.refuse(MANIFEST, may_list=may_list)
    for act in (x.refresh, lambda: (group.refresh(), [*group]), lambda: (group.refresh(), group["x"][...])):
        with pytest.raises(PermissionError):
            act()
    place.gate.arm()
    group.refresh()
    assert group["x"][...].tolist() == [7.0] * 8


def test_an_outer_group_does_not_show_what_an_inner_one_has_published(place: Place) -> None:
    outer = open_group(place.url.rpartition("/")[0], **place.options)
    assert [*outer["g.b2d"]] == ["x", "y"]
    place.refuse(MANIFEST, may_list=True)
    with pytest.raises(PermissionError):
        outer["g.b2d/x"]
    place.gate.arm()
    assert outer["g.b2d/x"][...].tolist() == [7.0] * 8


@MAY_LIST
def test_a_state_that_may_not_be_read_is_not_damaged(place: Place, *, may_list: bool) -> None:
    group = place.group()
    assert [*group] == ["x", "y"]
    place.refuse("/x.b2nd", f"/{DATA}/", may_list=may_list)
    for act in (
        lambda: group["x"][...],
        lambda: b2array.open(place.member, **place.options)[...],
        lambda: place.group(at="then")["x"][...],
        lambda: b2array.open(f"{place.url}/x", at="then", **place.options)[...],
    ):
        with pytest.raises(PermissionError):
            act()


@MAY_LIST
def test_no_commit_passes_a_group_whose_manifest_may_not_be_read(place: Place, *, may_list: bool) -> None:
    place.refuse(MANIFEST, may_list=may_list)

    def overwrite() -> None:
        b2array.asarray([3.0], url=place.member, overwrite=True, **place.options)

    for act in (
        lambda: b2array.open(place.member, "r+", **place.options).__setitem__(0, 9),
        overwrite,
        lambda: b2array.vacuum(place.member, grace=0, **place.options),
    ):
        with pytest.raises(PermissionError):
            act()
    place.gate.arm()
    assert b2array.open(place.member, **place.options)[...].tolist() == [7.0] * 8
    assert place.group()["x"][...].tolist() == [7.0] * 8
    assert place.group(at="then")["x"][...].tolist() == [0.0] * 8
