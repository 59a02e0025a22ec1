"""Servers that several test files use."""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import random
import re
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar
from unittest import TestCase

import clouds
import pytest
from fsspec.asyn import sync_wrapper
from hypothesis import is_hypothesis_test, settings
from lengths import Sampled
from servers import RangeServer, range_server

import b2array

T = TypeVar("T")

# netCDF4 would name filters for every copy of HDF5 here, which fail in the copy of h5py.
os.environ.setdefault("HDF5_PLUGIN_PATH", "")

# Python compiles the package once, and not again in each of the processes that tests start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# gcsfs would ask Google by other ways than HTTP what kind of bucket it has before it.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

# How long an example takes says more about what else the machine does.
settings.register_profile("b2array", deadline=None, max_examples=12)
settings.register_profile("long", deadline=None, max_examples=100)
settings.register_profile("nightly", deadline=None, max_examples=1000)
settings.load_profile("b2array")


COUNTS = {"--torture": (8, 16), "--hostile": (60, 150), "--power": (1, 8)}
"""How often tests of kills, damage and power failures repeat: in an ordinary run, and with the mark `slow`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the tests of kills, power failures and damaged inputs take longer."""
    parser.addoption("--torture", type=int, help="how often to kill a writer of each kind")
    parser.addoption("--torture-seed", type=int, help="what the moments of kills are drawn from")
    parser.addoption("--hostile", type=int, help="how many damaged inputs each parser gets")
    parser.addoption("--hostile-seed", type=int, default=0, help="what the damage is drawn from")
    parser.addoption("--power", type=int, help="how many random states of a disk to try")
    parser.addoption("--groups", type=float, help="for how many seconds writers of one group meet, each time")
    parser.addoption("--groups-seed", type=int, help="what the random model of groups is drawn from")
    parser.addoption("--power-seed", type=int, default=1, help="which ones")


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Let `-n auto` start half as many processes more as there are cores: tests often wait for servers and programs."""
    number = yield
    return number if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else number + max(1, number // 2)


def pytest_configure() -> None:
    """Wait for the disk only in the tests that are about it."""
    b2array.config.durable = "off"


_OF_TOOLS = ("build", "dist", "node_modules")
"""Directories that tools fill while tests run."""


def _is_left_alone(name: str) -> bool:
    """Say whether a directory or file belongs to a tool."""
    return name.startswith((".", "__")) or name.endswith(".egg-info") or name in _OF_TOOLS


def _files(config: pytest.Config) -> set[str]:
    """Return the paths of all files in the checkout and in the current directory, but for what tools keep."""
    found = set()
    for root in {config.rootpath, config.invocation_params.dir}:
        for directory, inner, names in os.walk(root):
            inner[:] = [name for name in inner if not _is_left_alone(name)]
            found.update(f"{directory}{os.sep}{name}" for name in [*names, *inner] if not _is_left_alone(name))
    return found


FILES = pytest.StashKey[set[str]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember what lies in the checkout."""
    session.config.stash[FILES] = _files(session.config)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if a test or an example has left something there."""
    left = sorted(_files(session.config) - session.config.stash[FILES])
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")  # the workers of pytest-xdist have none
    if left and reporter is not None:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.ensure_newline()
        reporter.write_line(f"ERROR: tests or examples have left files in the checkout: {left}", red=True)


def _is_random(item: pytest.Item) -> bool:
    """Say whether Hypothesis draws what a test does."""
    return isinstance(item, pytest.Function) and (
        is_hypothesis_test(item.obj) or issubclass(item.cls or object, TestCase)
    )


def _is_long() -> bool:
    """Say whether a profile asks for more examples than an ordinary run has."""
    return settings.get_current_profile_name() != "b2array"


def _values(item: pytest.Function) -> set[tuple[str, object]]:
    """Name the values of a test's parameters. What is one value of a parameter is one object for all tests.

    A kind of object store has two values: the server, and the client.
    """
    values: set[tuple[str, object]] = set()
    for name, value in item.callspec.params.items():
        if isinstance(value, str) and value in clouds.KINDS:
            server, _, client = value.partition(" ")
            values.update([("server", server), ("client", client)])
        else:
            values.add((name, id(value)))
    return values


def _leave_each_value(items: list[pytest.Function]) -> None:
    """Mark most combinations of one test's parameters as slow, so that each value stays in one of the others.

    Where one value has to come more than once, because another parameter has more of them, all come about as often.
    """
    left = {item: _values(item) for item in items if item.get_closest_marker("slow") is None}
    unseen, times = set().union(*left.values()), Counter[tuple[str, object]]()
    while unseen:
        chosen = max(left, key=lambda item: (len(unseen & left[item]), -sum(times[value] for value in left[item])))
        unseen -= left[chosen]
        times.update(left.pop(chosen))
    for item in left:
        item.add_marker(pytest.mark.slow)


def _leave_one_if_costly(items: list[pytest.Function]) -> None:
    """Mark all combinations of a test's parameters but one as slow, if the test says that it is costly."""
    left = [item for item in items if item.get_closest_marker("slow") is None]
    if not left or items[0].get_closest_marker("costly") is None:
        return
    chosen = left[zlib.crc32(items[0].originalname.encode()) % len(left)]
    for item in left:
        if item is not chosen:
            item.add_marker(pytest.mark.slow)


def _cloud_of(item: pytest.Function) -> object:
    """Return the value of the parameter that says which object store a test is about, or None."""
    for name, value in item.callspec.params.items():
        if name == "cloud" or (isinstance(value, str) and value in clouds.KINDS):
            return value
    return None


def _leave_one_cloud(items: list[pytest.Function]) -> None:
    """Mark all object stores of one test but one as slow, if it takes many: an ordinary run has them in turn.

    Tests that name one or two of them are about these.
    """
    left = {item: _cloud_of(item) for item in items if item.get_closest_marker("slow") is None}
    found = [*dict.fromkeys(filter(None, left.values()))]
    if len(found) < 3:
        return
    chosen = found[zlib.crc32(items[0].originalname.encode()) % len(found)]
    for item, cloud in left.items():
        if cloud not in (None, chosen):
            item.add_marker(pytest.mark.slow)


def _leave_one_in_six(items: list[pytest.Item]) -> None:
    """Mark most of xarray's own tests as slow: there are many, and `test_xarray_*` cover nearly the same behaviour."""
    theirs = [item for item in items if item.path.name == "test_xarray_suite.py"]
    for item in [item for n, item in enumerate(theirs) if n % 6]:
        item.add_marker(pytest.mark.slow)


def _pairs(item: pytest.Function) -> set[frozenset[tuple[str, object]]]:
    """Name each value of a test's parameters, and each two that are tried together."""
    values = _values(item)
    return {frozenset(few) for n in (1, 2) for few in itertools.combinations(values, n)}


def _beyond_pairs(items: list[pytest.Function]) -> list[pytest.Function]:
    """Return the slow combinations of one test's parameters without which each two values still come together."""
    slow = {item: _pairs(item) for item in items if item.get_closest_marker("slow")}
    unseen = set().union(*slow.values()) - set().union(*(_pairs(item) for item in items if item not in slow))
    for wanted in range(max(map(len, slow.values()), default=0), 0, -1):
        for item in [item for item, pairs in slow.items() if len(pairs & unseen) >= wanted]:
            if len(slow[item] & unseen) >= wanted:
                unseen -= slow.pop(item)
    return [*slow]


def _with_a_longer_run(items: list[pytest.Function]) -> list[pytest.Function]:
    """Return the slow items of one test whose parameter "short" stands beside a "long" one with the same others."""
    names = {item.name for item in items}
    slow = [item for item in items if item.get_closest_marker("slow")]
    return [item for item in slow if "short" in item.name and re.sub(r"\bshort\b", "long", item.name) in names]


def _compile_in_parts(config: pytest.Config) -> None:
    """Let each process of pytest-xdist begin with other test files: in a new checkout, to compile them takes seconds.

    All processes keep what they compile, and find what others have compiled meanwhile.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if count == 1 or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    own = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    for path in sorted((config.rootpath / "tests").rglob("test_*.py"))[own::count]:
        # Whatever this raises, the collection raises it again, and reports it.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.relative_to(config.rootpath).with_suffix("").parts))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect no garbage meanwhile: what is made there stays to the end."""
    gc.disable()
    try:
        _compile_in_parts(session.config)
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the tests of a long run take as long as they need; random tests are slow where a profile makes them so."""
    _leave_one_in_six(items)
    by_function: dict[str, list[pytest.Function]] = {}
    for item in items:
        if not (isinstance(item, pytest.Function) and hasattr(item, "callspec")):
            continue
        by_function.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for same in by_function.values():
        _leave_one_cloud(same)
        _leave_one_if_costly(same)
        _leave_each_value(same)
        left_out.update(_with_a_longer_run(same))
        if not _is_long() and (same[0].get_closest_marker("crossed") or any(map(_cloud_of, same))):
            left_out.update(_beyond_pairs([item for item in same if item not in left_out]))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    if _is_long():
        for item in filter(_is_random, items):
            item.add_marker(pytest.mark.slow)
    if _is_long() or any(config.getoption(option) for option in COUNTS):
        for item in items:
            item.add_marker(pytest.mark.timeout(0))


def count_of(request: pytest.FixtureRequest) -> int:
    """Return how often a test repeats: as often as the option says, else the usual number for a short or a slow run."""
    option = f"--{request.fixturename}"
    given: int | None = request.config.getoption(option)
    return COUNTS[option][request.param] if given is None else given


SHORT_AND_SLOW = [pytest.param(0, id="short"), pytest.param(1, id="long", marks=pytest.mark.slow)]


@pytest.fixture(params=SHORT_AND_SLOW)
def sampled(request: pytest.FixtureRequest) -> Sampled:
    """Return what takes one of so many places in an ordinary run, four times as many with the mark `slow`, else all.

    With which one it begins, differs from test to test.
    """
    first = zlib.crc32(request.node.name.encode())

    def chosen(places: Sequence[T], one_in: int) -> Sequence[T]:
        if request.param:
            one_in = 1 if _is_long() else max(1, one_in // 4)
        return places[first % max(1, min(one_in, len(places))) :: one_in]

    return chosen


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> None:
    """Let the collector of garbage skip what is there already: after some thousand tests it is millions of objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def _path_numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture
def tmp_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, _path_numbers: Iterator[int]
) -> Path:
    """Make a directory. To find a number for it, pytest's own fixture lists those of all tests before."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{name}{next(_path_numbers)}", numbered=False)


@pytest.fixture(params=SHORT_AND_SLOW)
def torture(request: pytest.FixtureRequest) -> int:
    """Tell how often to kill a writer."""
    return count_of(request)


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Draw the moments of kills, by the seed that is given or by another one each time."""
    seed = request.config.getoption("--torture-seed")
    if seed is None:
        seed = random.randrange(2**32)
    print(f"--torture-seed {seed}")
    return random.Random(f"{request.node.name} {seed}")


@pytest.fixture(params=SHORT_AND_SLOW)
def hostile(request: pytest.FixtureRequest) -> int:
    """Tell how many damaged inputs a parser gets."""
    return count_of(request)


@pytest.fixture(params=SHORT_AND_SLOW)
def power(request: pytest.FixtureRequest) -> int:
    """Tell how many random states of a disk to try."""
    return count_of(request)


@pytest.fixture
def hostile_seed(request: pytest.FixtureRequest) -> int:
    """Tell what the damage is drawn from."""
    seed: int = request.config.getoption("--hostile-seed")
    print(f"--hostile-seed {seed}")
    return seed


@pytest.fixture
def http() -> Iterator[RangeServer]:
    """Run an HTTP server of objects in memory, which counts requests."""
    pytest.importorskip("aiohttp")
    with range_server() as served:
        yield served


@pytest.fixture(scope="session")
def cloud_of() -> Iterator[Callable[[str], clouds.Cloud]]:
    """Run the server of a kind of object store, once for all clients; gives a function from the kind to the server."""
    running: dict[str, clouds.Cloud] = {}
    with ExitStack() as stack:

        def run(kind: str) -> clouds.Cloud:
            if kind in running:
                return running[kind]
            if kind in clouds.OBSTORE:
                cloud = clouds.by_obstore(run(kind.partition(" ")[0]))
            else:
                cloud = stack.enter_context(clouds.cloud(kind))
            return running.setdefault(kind, cloud)

        yield run


@pytest.fixture(params=clouds.KINDS)
def cloud(request: pytest.FixtureRequest, cloud_of: Callable[[str], clouds.Cloud]) -> clouds.Cloud:
    """Run the server of each kind of object store."""
    return cloud_of(request.param)


@pytest.fixture
def cloud_url(cloud: clouds.Cloud, _bucket_names: Iterator[str]) -> str:
    """Make a new bucket there; gives its URL."""
    return cloud.make_bucket(next(_bucket_names))


@pytest.fixture(scope="session")
def s3_options(cloud_of: Callable[[str], clouds.Cloud]) -> dict[str, object]:
    """Run a server of the S3 protocol; gives the storage options for it."""
    pytest.importorskip("moto.server")
    return cloud_of("s3").options


@pytest.fixture(scope="session")
def _bucket_names() -> Iterator[str]:
    return (f"bucket-{number}" for number in itertools.count())


@pytest.fixture
def bucket(s3_options: dict[str, object], cloud_of: Callable[[str], clouds.Cloud], _bucket_names: Iterator[str]) -> str:
    """Make a new bucket of S3; gives its name."""
    return cloud_of("s3").make_bucket(next(_bucket_names)).removeprefix("s3://")


@pytest.fixture
def s3_calls(s3_options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Remember the methods of S3 that s3fs calls from now on, for all requests; listing is forbidden."""
    import s3fs

    monkeypatch.setattr(b2array.config, "obstore", False)
    # A test before may have connected with fewer connections than b2array asks for.
    s3fs.S3FileSystem.clear_instance_cache()
    calls = []
    original = s3fs.S3FileSystem._call_s3

    async def call_s3(self: object, method: str, *args: object, **parameters: object) -> object:
        calls.append(method)
        if method.startswith("list"):
            raise PermissionError("listing is forbidden")
        return await original(self, method, *args, **parameters)

    async def lsdir(*_: object, **__: object) -> None:
        raise PermissionError("listing is forbidden")

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", call_s3)
    monkeypatch.setattr(s3fs.S3FileSystem, "call_s3", sync_wrapper(call_s3))
    monkeypatch.setattr(s3fs.S3FileSystem, "_lsdir", lsdir)
    return calls


@pytest.fixture
def s3_without_list(s3_options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the right to list away: then S3 denies access to what is missing, as if it might be there."""
    import s3fs
    from botocore.exceptions import ClientError

    monkeypatch.setattr(b2array.config, "obstore", False)  # it is s3fs that is made to say so
    original = s3fs.S3FileSystem._call_s3

    def cause(method: str) -> Exception:
        return ClientError({"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}, method)

    async def call_s3(self: object, method: str, *args: object, **parameters: object) -> object:
        if method.startswith("list"):
            raise PermissionError("Access Denied") from cause(method)
        try:
            return await original(self, method, *args, **parameters)
        except FileNotFoundError:
            raise PermissionError("Access Denied") from cause(method)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", call_s3)


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    """Give what random stories of groups are drawn from, and print it: the option ``--groups-seed``, or any number."""
    given = pytestconfig.getoption("--groups-seed")
    chosen: int = random.randrange(10**6) if given is None else given
    print(f"--groups-seed {chosen}")
    return chosen
