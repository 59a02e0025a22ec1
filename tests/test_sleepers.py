"""Writers in object stores that sleep for longer than any grace between two requests, while others are at work.

`tests/test_protocols.py` tries all orders of such steps in a model. Here are orders that went wrong, with real
requests.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import clouds
import numpy as np
import pytest

import b2array
from b2array.catalog.owners import load_published
from b2array.commit import staging
from b2array.errors import ConflictError
from b2array.store.open import open_store

COMMIT = r"PUT .*/\.b2group$"


@pytest.fixture(autouse=True)
def _everybody_has_slept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "CHECKED_AFTER", 0.0)
    monkeypatch.setattr(b2array.config, "cache_bytes", 0)


@pytest.fixture
def sleeps(cloud_of: Callable[[str], clouds.Cloud]) -> Iterator[Callable[..., dict[str, object]]]:
    """Return options for a writer that sleeps before its first such request, while somebody else acts.

    The first one `after` another one, if that is given. Both are patterns.
    """
    cloud = cloud_of("s3")

    @contextmanager
    def gate() -> Iterator[Callable[..., dict[str, object]]]:
        with clouds.gate_to(cloud) as (gate, endpoint):

            def options(request: str, act: Callable[[], object], after: str = "") -> dict[str, object]:
                def rule(_: int, what: str) -> object:
                    is_time = not after or any(re.search(after, each) for each in gate.asked)
                    if is_time and re.search(request, what):
                        gate.paused = True
                        return lambda: act() and None
                    return None

                gate.arm(rule)
                return cloud.through(endpoint)

            yield options

    with gate() as options:
        yield options


@pytest.fixture
def group(bucket: str, s3_options: dict[str, object]) -> b2array.Group:
    made = b2array.open_group(f"s3://{bucket}/g.b2d", "w", storage_options=s3_options)
    for layout in ("sparse", "contiguous"):
        made.create(layout, data=np.ones((4, 100)), chunks=(1, 100), layout=layout)
    return made


def test_a_revision_that_vacuum_removed_before_the_commit_is_written_again(group, s3_options, sleeps) -> None:
    def clean() -> object:
        return b2array.vacuum(group.url, grace=0, storage_options=s3_options)

    for layout, change in [("sparse", "attrs"), ("contiguous", "attrs"), ("contiguous", "values")]:
        options = sleeps(COMMIT, clean)
        sleeper = b2array.open_group(group.url, "r+", storage_options=options)[layout]
        if change == "attrs":
            sleeper.attrs["unit"] = "m"
        else:
            sleeper[0] = 5
        report = b2array.verify(group.url, deep=True, storage_options=s3_options)
        assert report.ok, report
    group.refresh()
    assert group["sparse"].attrs["unit"] == group["contiguous"].attrs["unit"] == "m"
    assert group["contiguous"][:, 0].tolist() == [5, 1, 1, 1]


@pytest.mark.parametrize("when", [(COMMIT, ""), ("POST .*delete", COMMIT)], ids=["before its commit", "after it"])
def test_a_member_that_was_made_while_vacuum_was_at_work_keeps_its_chunks(group, s3_options, sleeps, when) -> None:
    """Its chunks waited for long. The commit comes before that of vacuum, or after it and before the deletions."""
    transaction = group.transaction()
    changes = transaction.__enter__()
    changes.create("new", data=np.full((4, 100), 7), chunks=(1, 100), layout="sparse")
    errors: list[Exception] = []

    def commit() -> None:
        try:
            transaction.__exit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - the thread of the gate shows no errors
            errors.append(error)

    request, after = when
    report = b2array.vacuum(group.url, grace=0, storage_options=sleeps(request, commit, after))
    assert report.ok, report
    shown = b2array.open_group(group.url, storage_options=s3_options)
    assert errors == []
    assert (shown["new"][...] == 7).all()


def test_a_state_is_not_restored_whose_snapshot_was_dropped_meanwhile(group, s3_options, sleeps) -> None:
    group.snapshot("s")
    del group["sparse"]

    def drop() -> None:
        group.drop_snapshot("s")
        b2array.vacuum(group.url, grace=0, storage_options=s3_options)

    sleeper = b2array.open_group(group.url, "r+", storage_options=sleeps(COMMIT, drop))
    with pytest.raises(ConflictError, match="snapshot 's'"):
        sleeper.restore("s")
    group.refresh()
    assert [*group] == ["contiguous"]


@pytest.mark.parametrize("layout", ["sparse", "contiguous"])
@pytest.mark.parametrize("new_layout", ["sparse", "contiguous"])
@pytest.mark.parametrize("is_group", [True, False])
def test_an_array_that_a_group_adopts_meanwhile_is_replaced_through_the_group(
    bucket, s3_options, sleeps, layout, new_layout, is_group
) -> None:
    root, data = f"s3://{bucket}/older.b2d", np.full((4, 100), 7)
    url = f"{root}/e.b2nd"
    b2array.asarray(np.zeros((4, 100), int), url=url, chunks=(1, 100), layout=layout, storage_options=s3_options)
    if is_group:
        b2array.open_group(root, "a", storage_options=s3_options)["other"] = [1]

    def adopt() -> None:
        b2array.open_group(root, "a", storage_options=s3_options)["e"][0] = 5

    options = sleeps("PUT .*/e.b2nd(/chunks.b2frame)?$", adopt)
    b2array.asarray(data, url=url, chunks=(1, 100), layout=new_layout, overwrite=True, storage_options=options)
    shown = b2array.open_group(root, storage_options=s3_options)["e"][...]
    assert (shown[1:] == data[1:]).all()
    assert (shown[0] == 7).all() or (shown[0] == 5).all()  # who commits to the group first comes first
    assert (b2array.open(url, storage_options=s3_options)[...] == shown).all()


@pytest.mark.parametrize("mended_by", ["vacuum", "the next commit"])
@pytest.mark.parametrize("layout", ["sparse", "contiguous"])
def test_a_member_that_a_late_deletion_took_from_stock_readers_is_published_again(
    group, s3_options, sleeps, layout, mended_by
) -> None:
    def make_again() -> None:
        shown = b2array.open_group(group.url, "r+", storage_options=s3_options)
        shown.create(layout, data=np.full((4, 100), 7), chunks=(1, 100), layout=layout)

    options = sleeps("POST .*delete", make_again, after=COMMIT)
    del b2array.open_group(group.url, "r+", storage_options=options)[layout]
    store = open_store(group.url, storage_options=s3_options).below(f"{layout}.b2nd")
    with pytest.raises(FileNotFoundError):
        load_published(store)
    group.refresh()
    if mended_by == "vacuum":
        b2array.vacuum(group.url, storage_options=s3_options)
    else:
        group[layout].attrs["unit"] = "m"
    assert load_published(store).generation == group[layout].generation
    assert (group[layout][...] == 7).all()


def test_a_member_is_made_where_a_leftover_goes_at_that_moment(group, s3_options, sleeps) -> None:
    store = open_store(group["sparse"].url, storage_options=s3_options)
    leftover = b"".join(store.pieces("chunks.b2frame"))
    del group["sparse"]
    store.create("chunks.b2frame", leftover)  # who deleted the member has not come to that yet
    tries: list[object] = []

    def go() -> None:
        tries.append(store.delete(["chunks.b2frame"]))

    options = sleeps("PUT .*/chunks.b2frame$", go, after="GET .*/chunks.b2frame$")
    b2array.open_group(group.url, "r+", storage_options=options).create(
        "sparse", data=np.full((4, 100), 7), chunks=(1, 100), layout="sparse"
    )
    assert tries
    group.refresh()
    assert (group["sparse"][...] == 7).all()


def test_the_last_commit_is_published_though_an_earlier_one_is_published_meanwhile(group, cloud_of) -> None:
    cloud, url = cloud_of("s3"), group["sparse"].url
    first_waits, second_waits = threading.Event(), threading.Event()
    with clouds.gate_to(cloud) as (first, endpoint), clouds.gate_to(cloud) as (second, other_endpoint):
        writers = [b2array.open(url, "r+", storage_options=cloud.through(each)) for each in (endpoint, other_endpoint)]
        is_publishing = "/sparse.b2nd/chunks.b2frame"

        def change() -> None:
            writers[0][0] = 5

        thread = threading.Thread(target=change)

        def wait() -> None:
            first.paused = True
            first_waits.set()
            second_waits.wait(30)

        def go_on() -> None:
            second.paused = True
            second_waits.set()
            thread.join()

        first.arm(lambda _, what: wait if what.startswith("PUT") and what.endswith(is_publishing) else None)
        second.arm(lambda _, what: go_on if what.startswith("PUT") and what.endswith(is_publishing) else None)
        thread.start()
        assert first_waits.wait(30)
        writers[1][1] = 6
        thread.join()
    shown = b2array.open(url, storage_options=cloud.options)
    assert shown[:2, 0].tolist() == [5, 6]
    assert load_published(open_store(url, storage_options=cloud.options)).generation == shown.generation
