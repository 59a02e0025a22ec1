"""The same on every object store whose server compares while it writes: faults, kills, forks, processes, requests.

What stores do in order is in `store/test_base.py` and `store/test_upload.py`, and what writers do to each other in
`test_contention.py`, for all of them, too.
"""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import urlsplit
from uuid import uuid4

import numpy as np
import pytest
from clouds import AZURE_ACCOUNT, AZURE_KEY, KINDS, OBSTORE, Cloud, Gate, gate_to
from gcs_server import UNLISTED
from stories import ChunkStory, Contents, SnapshotStory, Story

import b2array
from b2array import config
from b2array.errors import B2ArrayError, ConflictError, UnsupportedError
from b2array.store import upload
from b2array.store.base import Version
from b2array.store.open import FILE_SYSTEM, open_store
from b2array.store.secrets import secrets
from b2array.store.spans import Span

pytestmark = [pytest.mark.crossed, pytest.mark.filterwarnings("ignore:.*is rewritten with every change")]
forking = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
by_each_client = pytest.mark.parametrize(
    "cloud", [pytest.param(kind, marks=pytest.mark.slow if kind in OBSTORE else ()) for kind in KINDS], indirect=True
)
"""An ordinary run leaves out obstore, whose processes take longest to begin."""

TIMEOUT = 0.3
"""Seconds after which clients give up, in tests in which answers come late."""


@pytest.fixture(autouse=True)
def _one_thread_and_no_cache() -> Iterator[None]:
    with config.using(threads=1, cache_bytes=0):
        yield


@pytest.fixture
def gate(cloud: Cloud) -> Iterator[tuple[Gate, dict[str, object]]]:
    """Stand in front of a server; gives the gate and the options to pass it."""
    with gate_to(cloud) as (gate, endpoint):
        yield gate, cloud.through(endpoint)


@pytest.fixture
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients try again at once."""
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda _seconds, *args: sleep(0, *args))


def impatient(cloud: Cloud, options: dict[str, object]) -> dict[str, object]:
    """Let clients give up soon."""
    if cloud.kind in OBSTORE:
        fs = options[FILE_SYSTEM]
        asked = {**fs.storage_options["client_options"], "timeout": f"{TIMEOUT * 1000:.0f}ms"}
        return {FILE_SYSTEM: type(fs)(fs.protocol, **{**fs.storage_options, "client_options": asked})}
    import aiohttp

    added = {
        "s3": {"config_kwargs": {"read_timeout": TIMEOUT}},
        "gcs": {"requests_timeout": aiohttp.ClientTimeout(total=TIMEOUT)},
        "azure": {"read_timeout": TIMEOUT},
    }
    return {**options, **added[cloud.kind]}


# ---- requests that fail ----

FATES = {500: 7, 503: 7, 429: 7, 403: 7, "dropped": 7, "lost": 7, "denied": 7, "twice": 5, "late": 23}
"""What becomes of requests, and of how many one."""


def told(kind: type[Story], root: str) -> list[Contents]:
    """Return what is found before the first step of a story and after each."""
    story, states = kind(f"memory://{root}/{kind.__name__}", "sparse"), [None]
    for step in story.STEPS:
        getattr(story, step)()
        states.append(story.found())
    return states


@pytest.mark.usefixtures("_hurry")
@pytest.mark.parametrize("kind", [Story, ChunkStory, SnapshotStory])
def test_whatever_becomes_of_requests_each_change_happens_or_does_not(cloud, cloud_url, gate, kind, tmp_path, torture):
    (gate, options), states = gate, told(kind, tmp_path.name)
    # A short run covers all that may happen between the places; a nightly one covers it at every request.
    first = KINDS.index(cloud.kind) + len(KINDS) * (kind is Story)
    apart = 3 if torture > 8 else 2 * len(KINDS)
    chosen = FATES if torture > 24 else dict.fromkeys(["lost", *[*FATES][first % apart :: apart]])
    for fate in chosen:
        for offset in range(FATES[fate]) if torture > 24 else [1 + len(str(fate)) % 5]:
            url = f"{cloud_url}/{kind.__name__}-{fate}-{offset}"
            story = kind(url, "sparse", impatient(cloud, options) if fate == "late" else options)
            gate.arm(lambda number, _, offset=offset, fate=fate: fate if number % FATES[fate] == offset else None)
            try_all(story, states, gate, cloud.options, late=fate == "late")
            assert gate.fired or len(gate.asked) <= offset, fate  # a story may be shorter


def try_all(story: Story, states: list[Contents], gate: Gate, options: dict[str, object], *, late: bool) -> None:
    """Do everything, again if something fails; and look past the gate whether it has happened."""
    looking = type(story)(story.url, story.layout, options)
    for step, before, after in zip(story.STEPS, states, states[1:], strict=False):
        failure = None
        try:
            getattr(story, step)()
        except (OSError, B2ArrayError) as error:
            failure = error
        gate.wait()
        found = looking.found()
        if failure is None:
            assert found == after, step
            continue
        assert found in ([before, after] if late else [before]), (step, failure)
        gate.paused = True
        if found == after != before:
            story.reopen()
        else:
            getattr(story, step)()
            assert looking.found() == after, step
        gate.paused = False


@pytest.mark.usefixtures("_hurry")
@pytest.mark.parametrize("fate", [503, "lost", "twice"])
def test_an_upload_in_parts_survives_requests_that_fail(cloud, cloud_url, gate, fate, monkeypatch):
    gate, options = gate
    part = (5 if cloud.kind == "s3" else 1) * 2**20  # what a server takes at least
    monkeypatch.setattr(upload, "PART", part)
    monkeypatch.setattr(upload, "WHOLE", part)
    content = np.random.default_rng(0).bytes(part * 5 // 2)
    store = open_store(f"{cloud_url}/big", storage_options=options)
    for at in range(3 if fate == "lost" else 1):
        gate.arm(lambda number, what, at=at: fate if number % 3 == at and not what.startswith("HEAD") else None)
        done = None
        try:
            done = store.create(str(at), iter([content]))
        except OSError:
            # The answer to the last request was lost, and what it had made was in the way when it was sent again.
            assert fate != 503
        gate.arm()
        assert done in (None, store.stamp(str(at)))
        (found,) = store.read([Span(str(at), 0, len(content))])
        assert found == content


def test_a_gate_knows_for_which_writes_a_server_compares_versions(cloud, cloud_url, gate):
    (gate, options), found = gate, []
    store = open_store(f"{cloud_url}/a", storage_options=options)

    def conditions_of(act: Callable[[], object]) -> set[bool]:
        found.clear()
        act()
        return {*found}

    gate.arm(lambda _, request: found.append(request.has_condition))
    assert conditions_of(lambda: store.create("x", b"one")) == {True}
    version = store.stamp("x").version
    assert conditions_of(lambda: store.read([Span("x", 0, 3)])) == {False}
    assert conditions_of(lambda: store.replace("x", b"two", expected=version)) == {True}
    assert conditions_of(lambda: store.replace("x", b"three")) == {False}
    assert conditions_of(lambda: store.delete(["x"])) == {False}


def holding(name: str) -> Callable[[int, str], object]:
    """Return a rule that holds requests that write an object."""
    return lambda _, what: "held" if name in what and not what.startswith(("GET", "HEAD")) else None


def test_a_commit_whose_request_arrives_after_it_has_failed_takes_effect_as_a_whole(cloud, cloud_url, gate):
    gate, options = gate
    url = f"{cloud_url}/a.b2nd"
    data = np.random.default_rng(0).integers(0, 9, (4, 40))

    def check(expected: np.ndarray) -> None:
        assert np.array_equal(b2array.open(url, storage_options=cloud.options)[...], expected)
        assert b2array.verify(url, deep=True, storage_options=cloud.options).ok

    gate.arm(holding("chunks.b2frame"))
    with pytest.raises(OSError, match=r".") as caught:
        b2array.asarray(data, url=url, chunks=(1, 40), storage_options=options)
    assert isinstance(caught.value, PermissionError)
    gate.release()
    check(data)
    a = b2array.open(url, "r+", storage_options=options)
    with pytest.raises(PermissionError):
        a[...] = data + 1
    check(data)
    gate.release()
    check(data + 1)
    gate.arm()
    a[0] = 0
    data[0] = -1
    check(data + 1)


@pytest.mark.usefixtures("_hurry")
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_commit_that_its_writer_was_not_told_of_happens_once_when_others_are_on_top_of_it(
    cloud, cloud_url, gate, layout
):
    gate, options = gate
    url = f"{cloud_url}/a.b2nd"
    b2array.asarray(np.arange(4), url=url, chunks=(2,), layout=layout, storage_options=cloud.options)
    a = b2array.open(url, "r+", storage_options=options)

    def change_twice() -> None:
        b = b2array.open(url, "r+", storage_options=cloud.options)
        b.append([200])
        b[1] -= 10

    def overtaken(change: Callable[[], object]) -> None:
        index = "chunks.b2frame" if layout == "sparse" else "a.b2nd"
        gate.overtake = change_twice
        gate.arm(lambda _, what: None if gate.fired or index not in what or what[:3] in ("GET", "HEA") else "overtaken")
        change()
        assert gate.fired

    overtaken(lambda: a.append([100]))
    assert a[...].tolist() == [0, -9, 2, 3, 100, 200]
    overtaken(lambda: a.__setitem__(1, 5))
    assert a[...].tolist() == [0, -5, 2, 3, 100, 200, 200]
    assert b2array.open(url, storage_options=cloud.options)[...].tolist() == a[...].tolist()
    assert b2array.verify(url, deep=True, storage_options=cloud.options).ok


@pytest.mark.usefixtures("_hurry")
def test_a_group_transaction_that_was_not_told_of_happens_once_when_others_are_on_top_of_it(cloud, cloud_url, gate):
    gate, options = gate
    url = f"{cloud_url}/g.b2d"
    with b2array.open_group(url, "w", storage_options=cloud.options).transaction() as made:
        for name in "ab":
            made.create(name, data=np.arange(4), chunks=(2,), layout="sparse")

    def change_twice() -> None:
        with b2array.open_group(url, "r+", storage_options=cloud.options).transaction() as theirs:
            theirs["a"].append([200])
            theirs.create("b", data=np.full(3, 9))

    gate.overtake = change_twice
    with b2array.open_group(url, "r+", storage_options=options).transaction() as ours:
        ours["a"].append([100])
        ours.create("c", data=np.arange(3))
        del ours["b"]
        gate.arm(lambda _, what: None if gate.fired or ".b2group" not in what or what[:3] == "GET" else "overtaken")
    assert gate.fired
    found = b2array.open_group(url, storage_options=cloud.options)
    expected = {"a": [0, 1, 2, 3, 100, 200], "b": [9, 9, 9], "c": [0, 1, 2]}
    assert {name: found[name][...].tolist() for name in found} == expected
    assert b2array.verify(url, deep=True, storage_options=cloud.options).ok


def test_a_group_transaction_whose_request_arrives_after_it_has_failed_takes_effect_as_a_whole(cloud, cloud_url, gate):
    gate, options = gate
    url = f"{cloud_url}/g.b2d"
    made = b2array.open_group(url, "w", storage_options=cloud.options)
    made.create("a", data=np.arange(40).reshape(4, 10), chunks=(1, 10), layout="sparse")
    group = b2array.open_group(url, "r+", storage_options=options)

    def transact() -> None:
        with group.transaction() as changes:
            changes["a"][...] = 7
            changes.create("b", data=np.full((4, 10), 8), layout="sparse")
            gate.arm(holding(".b2group"))

    with pytest.raises(PermissionError):
        transact()
    gate.release()
    gate.arm()
    found = b2array.open_group(url, "r+", storage_options=cloud.options)
    assert (found["a"][...] == 7).all()
    assert (found["b"][...] == 8).all()


@pytest.mark.parametrize("status", [401, 403])
def test_a_request_that_is_not_allowed_is_a_permission_error_without_secrets(cloud, cloud_url, gate, status):
    gate, options = gate
    store = open_store(f"{cloud_url}/a", storage_options=options)
    store.create("x", b"content")
    gate.arm(lambda *_: status)
    for ask in (
        lambda: store.stamp("x"),
        lambda: store.read([Span("x", 0, 3)]),
        lambda: store.create("y", b"content"),
        lambda: store.replace("x", b"new", expected=Version("1")),
    ):
        with pytest.raises(PermissionError) as caught:
            ask()
        assert not any(secret in str(caught.value) for secret in secrets(store.url, options) if secret != "anon")
    gate.arm()
    assert store.stamp("x").size == 7


def test_a_write_that_another_one_under_way_refuses_is_sent_again(cloud_of, bucket):
    cloud, url = cloud_of("s3"), f"s3://{bucket}/a"
    text = "<Error><Code>ConditionalRequestConflict</Code><Message>in progress</Message></Error>"
    with gate_to(cloud) as (gate, endpoint):
        store = open_store(url, storage_options=cloud.through(endpoint))
        gate.arm(lambda number, _: (409, text) if number < 2 else None)
        stamp = store.create("", b"one")
        gate.arm(lambda number, _: (409, text) if number < 2 else None)
        assert store.replace("", b"two", expected=stamp.version) == store.stamp("")
        gate.arm(lambda *_: (409, text))
        with config.using(retries=1), pytest.raises(OSError, match="another request was changing the object") as caught:
            store.replace("", b"three", expected=Version('"1"'))
        assert caught.value.errno == errno.EBUSY  # the server has compared nothing
        assert len(gate.asked) == 2


def test_a_new_object_that_another_write_refuses_to_the_end_is_not_said_to_exist(cloud_of, bucket):
    cloud, url = cloud_of("s3"), f"s3://{bucket}/a"
    text = "<Error><Code>ConditionalRequestConflict</Code><Message>in progress</Message></Error>"
    with gate_to(cloud) as (gate, endpoint):
        store = open_store(url, storage_options=cloud.through(endpoint))
        gate.arm(lambda *_: (409, text))
        with (
            config.using(retries=1),
            pytest.raises(OSError, match="another request was changing the object; repeat it") as caught,
        ):
            store.create("", b"one")
        assert (type(caught.value), caught.value.errno, url in str(caught.value)) == (OSError, errno.EBUSY, True)
        assert len(gate.asked) == 2
        gate.arm()
        assert store.create("", b"one") == store.stamp("")


def test_an_upload_in_parts_that_another_write_refuses_says_so_and_leaves_nothing(cloud_of, bucket, monkeypatch):
    monkeypatch.setattr(upload, "PART", 5 * 2**20)  # what S3 takes at least
    monkeypatch.setattr(upload, "WHOLE", 5 * 2**20)
    cloud, url = cloud_of("s3"), f"s3://{bucket}/a"
    text = "<Error><Code>ConditionalRequestConflict</Code><Message>in progress</Message></Error>"
    with gate_to(cloud) as (gate, endpoint):
        store = open_store(url, storage_options=cloud.through(endpoint))
        gate.arm(lambda _, what: (409, text) if what.startswith("POST") and "uploadId=" in what else None)
        with pytest.raises(OSError, match="another request was changing the object; repeat it") as caught:
            store.create("", iter([bytes(6 * 2**20)]))
        assert (type(caught.value), caught.value.errno, url in str(caught.value)) == (OSError, errno.EBUSY, True)
        assert gate.asked[-1].startswith("DELETE")
        gate.arm()
        assert store.create("", iter([bytes(6 * 2**20)])) == store.stamp("")


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_the_servers_of_these_tests_refuse_a_body_whose_client_is_killed(cloud_of, kind):
    cloud = cloud_of(kind)
    path = "/" + cloud.make_bucket(f"cut-{uuid4()}").partition("://")[2] + "/x"
    at = urlsplit(cloud.endpoint)
    with socket.create_connection((at.hostname, at.port)) as client:
        client.sendall(f"PUT {path} HTTP/1.1\r\nHost: {at.netloc}\r\nContent-Length: 10\r\n\r\nhalf".encode())
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    assert not cloud.fs.exists(path[1:])


def test_a_bucket_that_does_not_exist_is_that_error(cloud):
    url = f"{cloud.protocol}://no-such-bucket-at-all/a.b2nd"
    with pytest.raises(FileNotFoundError):
        b2array.open(url, storage_options=cloud.options)
    with pytest.raises(FileNotFoundError):
        b2array.zeros((4,), "i4", url=url, storage_options=cloud.options)
    with pytest.raises(FileNotFoundError):
        open_store(url, storage_options=cloud.options).create("", iter([bytes(upload.WHOLE), b"x"]))


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_bucket_is_a_place_for_a_group_and_no_object(cloud, cloud_url, slash):
    url = cloud_url + slash
    with pytest.raises(FileNotFoundError):
        b2array.verify(url, storage_options=cloud.options)
    store = open_store(url, storage_options=cloud.options)
    for ask in (lambda: store.stamp(""), lambda: store.read([Span("", 0, 1)]), lambda: store.replace("", b"x")):
        with pytest.raises(FileNotFoundError, match=cloud_url):
            ask()
    with b2array.open_group(url, "w", storage_options=cloud.options).transaction() as group:
        group.create("x", data=np.arange(4))
    assert b2array.verify(url, storage_options=cloud.options).ok
    assert b2array.open_group(url, storage_options=cloud.options)["x"][2] == 2


# ---- how many requests ----


def test_each_operation_is_one_request(cloud, cloud_url, gate):
    gate, options = gate
    store = open_store(f"{cloud_url}/a", storage_options=options)
    stamp = store.create("x", b"0123456789")
    counts = []

    def count(verb: Callable[[], object]) -> object:
        gate.arm()
        try:
            return verb()
        finally:
            counts.append(len(gate.asked))

    stamp = count(lambda: store.replace("x", b"9876543210", expected=stamp.version))
    assert count(lambda: store.stamp("x")) == stamp
    assert count(lambda: store.read([Span("x", 2, 4)], expected=stamp.version)) == [b"76"]
    missing, head = count(lambda: store.head(["", "x"], 100))
    assert (head.stamp, bytes(head.data)) == (stamp, b"9876543210")
    assert isinstance(missing, FileNotFoundError)
    with pytest.raises(ConflictError):
        count(lambda: store.replace("x", b"", expected=Version("1" if cloud.kind == "gcs" else '"1"')))
    with pytest.raises(FileExistsError):
        count(lambda: store.create("x", b""))
    count(lambda: store.delete(["x"]))
    # Azure is asked whether an upload that was not completed is all that is in the way of a creation.
    assert counts == [1, 1, 1, 2, 1, 2 if cloud.kind == "azure" else 1, 1]


# ---- killed writers ----


def number_commits(url: str, options: dict[str, object], first: int) -> None:
    """Make commit after commit, each of which gives every item the number of the commit."""
    a = b2array.open(url, mode="r+", storage_options=options)
    for number in range(first, first + 100):
        with a.transaction():
            a[:3] = number
            a[3:] = number
            a.attrs["number"] = number
    os._exit(3)


def in_a_process(cloud: Cloud, function: Callable[..., object], *args: object) -> multiprocessing.Process:
    """Begin to run a function in a forked process; obstore does not work there, but where processes spawn."""
    context = multiprocessing.get_context("spawn" if cloud.kind in OBSTORE else "fork")
    process = context.Process(target=function, args=args)
    process.start()
    return process


@forking
@by_each_client
@pytest.mark.parametrize("layout", [pytest.param("contiguous", marks=pytest.mark.slow), "sparse"])
def test_a_writer_that_is_killed_at_a_request_leaves_a_committed_state(cloud, cloud_url, gate, layout, torture):
    gate, options = gate
    url = f"{cloud_url}/a.b2nd"
    rng = random.Random(f"{cloud.kind} {layout} {torture}")
    b2array.zeros((6, 40), "i8", url=url, chunks=(2, 40), layout=layout, storage_options=cloud.options)
    number = 0
    for _ in range(max(2, torture // 8)):
        last, arrives = rng.randrange(3, 30), rng.random() < 0.5
        process: list[multiprocessing.Process] = []

        def kill(process=process, arrives=arrives):
            os.kill(process[0].pid, signal.SIGKILL)
            return None if arrives else "dropped"

        gate.arm(lambda count, _, last=last, kill=kill: kill if count == last else None)
        with gate.lock:  # no request is judged before its process is known
            process.append(in_a_process(cloud, number_commits, url, options, number + 1))
        process[0].join(60)
        assert process[0].exitcode == -signal.SIGKILL
        gate.wait()
        a = b2array.open(url, storage_options=cloud.options)
        found = a[...]
        assert found.min() == found.max() == a.attrs.get("number", 0)
        assert number <= found.min() <= number + last
        number = int(found.min())
        assert b2array.verify(url, deep=True, storage_options=cloud.options).ok
    b2array.vacuum(url, grace=0, storage_options=cloud.options)
    a = b2array.open(url, mode="r+", storage_options=cloud.options)
    a[...] = -1
    assert (b2array.open(url, storage_options=cloud.options)[...] == -1).all()
    assert number > 0


# ---- processes and threads ----


def count_up(url: str, options: dict[str, object], rounds: int) -> None:
    """Add one to an item in transactions, each of which is repeated until it succeeds."""
    a = b2array.open(url, mode="r+", storage_options=options)
    done = 0
    while done < rounds:
        try:
            with a.transaction():
                a[0, 0] = a[0, 0] + 1
        except ConflictError:
            a.refresh()
        else:
            done += 1
    os._exit(0)


@forking
@by_each_client
def test_no_update_is_lost_between_processes(cloud, cloud_url):
    url = f"{cloud_url}/a.b2nd"
    held = b2array.zeros((2, 40), "i8", url=url, chunks=(1, 40), storage_options=cloud.options)
    processes = [in_a_process(cloud, count_up, url, cloud.options, 9) for _ in range(2)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    held.refresh()
    assert held[0, 0] == 18


@forking
def test_a_forked_child_goes_on_with_the_handle(cloud, cloud_url):
    url = f"{cloud_url}/a.b2nd"
    a = b2array.zeros((20, 10), "i8", url=url, chunks=(5, 10), storage_options=cloud.options)
    child = in_a_process(cloud, partial(a.__setitem__, 0, 5))
    child.join(60)
    assert child.exitcode == 0 or cloud.kind in OBSTORE  # whose threads may abort a process that ends
    a[10] = 6
    assert a[[0, 10], 0].tolist() == [5, 6]


@forking
@pytest.mark.parametrize("cloud", OBSTORE, indirect=True)
def test_a_fork_of_a_process_that_uses_obstore_gets_an_error_and_does_not_hang(cloud, cloud_url):
    a = b2array.ones((4, 10), url=f"{cloud_url}/a", storage_options=cloud.options)
    ours, theirs = multiprocessing.Pipe()

    def read() -> None:
        try:
            theirs.send(a[2].tolist())
        except UnsupportedError as error:
            theirs.send(str(error))

    child = multiprocessing.get_context("fork").Process(target=read)
    child.start()
    assert ours.poll(60)
    assert "obstore does not work in a forked process" in ours.recv()
    child.join(10)
    assert a[2].tolist() == [1] * 10


def test_it_works_while_an_event_loop_runs(cloud, cloud_url):
    url = f"{cloud_url}/a.b2nd"

    async def work() -> np.ndarray:
        b2array.zeros((4, 10), "i8", url=url, chunks=(1, 10), storage_options=cloud.options)[1] = 1
        await asyncio.sleep(0)
        return b2array.open(url, storage_options=cloud.options)[:, 0]

    assert asyncio.run(work()).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("kind", "protocols"),
    [("s3", ["s3", "s3a"]), ("gcs", ["gs", "gcs"]), ("azure", ["az", "abfs", "abfss"]), ("s3", ["my-cloud"])],
)
def test_what_decides_is_the_file_system_that_serves_a_protocol(cloud_of, kind, protocols, monkeypatch):
    import fsspec

    cloud = cloud_of(kind)

    class Mine(type(cloud.fs)):
        protocol = "my-cloud"

    fsspec.register_implementation("my-cloud", Mine, clobber=True)
    for protocol in protocols:
        store = open_store(f"{protocol}://bucket/a", storage_options=cloud.options)
        assert store.can.compare
        assert type(store) is type(open_store(f"{cloud.protocol}://bucket/a", storage_options=cloud.options))


# ---- without the right to list ----


@pytest.fixture(params=["s3", "gcs", "gcs obstore"])
def unlisted(
    request: pytest.FixtureRequest, cloud_of: Callable[[str], Cloud], _bucket_names: Iterator[str]
) -> tuple[str, dict[str, object]]:
    """A bucket with an array and a group, whose user has no right to list any more, and storage options."""
    cloud = cloud_of(request.param)
    url = cloud.make_bucket(f"{'' if request.param == 's3' else UNLISTED}{next(_bucket_names)}")
    options = {"storage_options": cloud.options}
    b2array.asarray(np.zeros(4), url=f"{url}/alone.b2nd", **options)
    group = b2array.open_group(f"{url}/g.b2d", "w-", **options)
    group["a"], group["s/b"] = np.zeros(3), np.ones(3)
    group.snapshot("then")
    if request.param == "s3":
        request.getfixturevalue("s3_without_list")
    return url, options


def test_existing_arrays_and_groups_are_read_and_written_without_the_right_to_list(unlisted):
    unlisted, options = unlisted
    b2array.open(f"{unlisted}/alone.b2nd", "r+", **options)[0] = 7
    assert b2array.open(f"{unlisted}/alone.b2nd", **options)[0] == 7
    url = f"{unlisted}/g.b2d"
    assert {*b2array.open(url, **options)} == {*b2array.open_group(url, **options)} == {"a", "s"}
    assert [*b2array.open(f"{url}/s", **options)] == ["b"]
    b2array.open(f"{url}/a", "r+", **options)[0] = 1
    b2array.open(f"{url}/s/b.b2nd", "r+", **options)[0] = 2
    group = b2array.open_group(url, "r+", **options)
    with group.transaction() as changes:
        changes["a"][1] = 3
        changes["s/b"][1] = 4
        changes["new"] = [5]
        changes.attrs["unit"] = "m"
    group["later"] = [6]
    del group["later"]
    assert b2array.open(f"{url}/a", **options)[...].tolist() == [1, 3, 0]
    assert b2array.open(f"{url}/s/b", **options)[...].tolist() == [2, 4, 1]
    found = b2array.open_group(url, **options)
    assert ({*found}, found["new"][0], dict(found.attrs)) == ({"a", "s", "new"}, 5, {"unit": "m"})
    assert b2array.open_group(url, at="then", **options)["a"][...].tolist() == [0, 0, 0]
    found = b2array.open_group(f"{unlisted}/made.b2d", "w-", **options)
    found["x"] = [1]
    assert b2array.open(f"{unlisted}/made.b2d/x", **options)[0] == 1
    assert b2array.asarray([8], url=f"{unlisted}/made.b2nd", **options)[0] == 8


def test_a_signature_without_the_right_to_list_is_enough_for_groups_and_tells_what_is_missing(cloud_of):
    """Azure says of a missing object that it is missing, to users who may read but not list as well."""
    from azure.storage.blob import ContainerSasPermissions, generate_container_sas

    cloud, name = cloud_of("azure"), uuid4().hex
    url = cloud.make_bucket(name)
    signature = generate_container_sas(
        AZURE_ACCOUNT,
        name,
        account_key=AZURE_KEY,
        permission=ContainerSasPermissions(read=True, write=True, create=True, delete=True),
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )
    address = f"BlobEndpoint={cloud.endpoint}/{AZURE_ACCOUNT};SharedAccessSignature={signature}"
    options = {"storage_options": {"connection_string": address, "account_name": AZURE_ACCOUNT}}
    with pytest.raises(PermissionError):
        open_store(url, **options).walk()
    group = b2array.open_group(f"{url}/g.b2d", "w-", **options)
    group["a"], group["s/b"] = np.zeros(3), np.ones(3)
    with group.transaction() as changes:
        changes["a"][0] = 7
        changes["s/b"][0] = 8
    b2array.open(f"{url}/g.b2d/a", "r+", **options)[1] = 9
    assert b2array.open(f"{url}/g.b2d/a", **options)[...].tolist() == [7, 9, 0]
    assert b2array.asarray([8], url=f"{url}/alone.b2nd", **options)[0] == 8
    with pytest.raises(FileNotFoundError) as caught:
        b2array.open(f"{url}/missing.b2nd", **options)
    assert not isinstance(caught.value, PermissionError)
    with pytest.raises(FileNotFoundError, match="has no member 'missing'"):
        b2array.open(f"{url}/g.b2d/missing", **options)


def test_without_the_right_to_list_nothing_says_whether_an_object_is_missing_or_hidden(unlisted):
    unlisted, options = unlisted
    for ask in (
        lambda: b2array.open(f"{unlisted}/missing.b2nd", **options),
        lambda: b2array.zeros(3, url=f"{unlisted}/missing.b2nd", overwrite=True, **options),
        lambda: open_store(f"{unlisted}/missing", **options).stamp(""),
    ):
        for kind in (FileNotFoundError, PermissionError):
            with pytest.raises(kind, match=r"does not exist, or may not be read.*missing"):
                ask()
    with pytest.raises(FileNotFoundError, match="no group that you may read, and you may not list the files there"):
        b2array.open_group(f"{unlisted}/missing.b2d", **options)
    with pytest.raises(FileNotFoundError, match="has no member 'missing'"):
        b2array.open(f"{unlisted}/g.b2d/missing", **options)
    with pytest.raises(FileExistsError):
        b2array.zeros(3, url=f"{unlisted}/alone.b2nd", **options)
    with pytest.raises(FileExistsError):
        open_store(f"{unlisted}/alone.b2nd", **options).create("chunks.b2frame", b"x")


def test_who_may_list_learns_that_an_object_may_not_be_read(cloud_of, bucket):
    cloud = cloud_of("s3")
    with gate_to(cloud) as (gate, endpoint):
        options = cloud.through(endpoint)
        store = open_store(f"s3://{bucket}/a", storage_options=options)
        store.create("x", b"content")
        gate.arm(lambda _, request: 403 if "/a/x" in request.partition("?")[0] else None)
        with pytest.raises(PermissionError) as caught:
            store.stamp("x")
        assert not isinstance(caught.value, FileNotFoundError)
