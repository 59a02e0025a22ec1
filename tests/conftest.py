"""Servers that several test files use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from fsspec.asyn import sync_wrapper
from hypothesis import settings
from servers import RangeServer, range_server, s3_server

import b2array

# How long an example takes says more about what else the machine does.
settings.register_profile("b2array", deadline=None)
settings.load_profile("b2array")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the tests of kills, power failures and damaged inputs take longer."""
    parser.addoption("--torture", type=int, default=50, help="how often to kill a writer of each layout")
    parser.addoption("--hostile", type=int, default=60, help="how many damaged inputs each parser gets")
    parser.addoption("--hostile-seed", type=int, default=0, help="what the damage is drawn from")
    parser.addoption("--power", type=int, default=60, help="how many random states of the disk to try for each story")
    parser.addoption("--power-seed", type=int, default=1, help="which ones")


def pytest_configure() -> None:
    """Wait for the disk only in the tests that are about it."""
    b2array.config.durable = "off"


@pytest.fixture
def torture(request: pytest.FixtureRequest) -> int:
    """Tell how often to kill a writer."""
    times: int = request.config.getoption("--torture")
    return times


@pytest.fixture
def hostile(request: pytest.FixtureRequest) -> int:
    """Tell how many damaged inputs a parser gets."""
    count: int = request.config.getoption("--hostile")
    return count


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
def s3_options() -> Iterator[dict[str, object]]:
    """Run a server of the S3 protocol; gives the storage options for it."""
    pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    with s3_server() as options:
        yield options


@pytest.fixture(scope="session")
def _bucket_names() -> Iterator[str]:
    return (f"bucket-{number}" for number in itertools.count())


@pytest.fixture
def bucket(s3_options: dict[str, object], _bucket_names: Iterator[str]) -> str:
    """Make a new bucket; gives its name."""
    import s3fs

    name = next(_bucket_names)
    s3fs.S3FileSystem(**s3_options).call_s3("create_bucket", Bucket=name)
    return name


@pytest.fixture
def s3_calls(s3_options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Remember the methods of S3 that are called from now on; listing is forbidden."""
    import s3fs

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
