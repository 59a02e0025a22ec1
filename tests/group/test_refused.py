"""What readers and writers of groups conclude from a server that refuses reads: never that anything is missing."""

from __future__ import annotations

from collections.abc import Callable
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

LAYOUTS = pytest.mark.parametrize("layout", ["sparse", "contiguous"])

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
            path, _, query = request.partition("?")
            is_listing = "list-type=" in query or "prefix=" in query
            is_refused = not may_list if is_listing else any(part in path for part in parts)
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


@pytest.fixture(params=["s3", "gcs"])
def make(request: pytest.FixtureRequest, cloud_of: Callable[[str], Cloud], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a function that makes the group in an object store behind a gate."""
    cloud, operations = cloud_of(request.param), Operations()
    url = cloud.make_bucket(f"refused-{uuid4()}") + "/g.b2d"
    operations.listen(type(open_store(url, storage_options=cloud.options)), monkeypatch)
    with gate_to(cloud) as (gate, endpoint):

        def function(layout: Any) -> Place:
            direct = {"storage_options": cloud.options}
            group = open_group(url, "w", **direct)
            group.create("x", data=np.zeros(8), chunks=(2,), layout=layout)
            group["y"] = [1.0]
            group.snapshot("then")
            with pytest.raises(Killed):
                operations.watch(lambda: group["x"].__setitem__(slice(None), 7), after_the_manifest())
            return Place(url, {"storage_options": cloud.through(endpoint)}, gate)

        yield function


MAY_LIST = pytest.mark.parametrize("may_list", [True, False])


@MAY_LIST
@LAYOUTS
def test_a_group_that_was_read_does_not_lose_its_manifest(
    make: Callable[[Any], Place], layout: Any, *, may_list: bool
) -> None:
    place = make(layout)
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


@LAYOUTS
def test_an_outer_group_does_not_show_what_an_inner_one_has_published(
    make: Callable[[Any], Place], layout: Any
) -> None:
    place = make(layout)
    outer = open_group(place.url.rpartition("/")[0], **place.options)
    assert [*outer["g.b2d"]] == ["x", "y"]
    place.refuse(MANIFEST, may_list=True)
    with pytest.raises(PermissionError):
        outer["g.b2d/x"]
    place.gate.arm()
    assert outer["g.b2d/x"][...].tolist() == [7.0] * 8


@MAY_LIST
@LAYOUTS
def test_a_state_that_may_not_be_read_is_not_damaged(
    make: Callable[[Any], Place], layout: Any, *, may_list: bool
) -> None:
    place = make(layout)
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
@LAYOUTS
def test_no_commit_passes_a_group_whose_manifest_may_not_be_read(
    make: Callable[[Any], Place], layout: Any, *, may_list: bool
) -> None:
    place = make(layout)
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
