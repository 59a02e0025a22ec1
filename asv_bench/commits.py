"""How many commits a second the writers of a bucket make: of one group, by forks, of a group each, of arrays outside.

    python asv_bench/commits.py [--service s3|gcs] [--writers N ...] [--latency MS] [--slower FACTOR] [--seconds S]

Threads change arrays of one chunk in a bucket: a server in this process, which speaks as much of S3's protocol as that
takes. Each request takes `--latency` milliseconds, 30 by default. With ``--service gcs`` the writes of one object are a
second apart, as Google allows in the long run: one that comes earlier waits, unless it is refused.

So that the time of processors does not count, everything takes `--slower` times as long as it says, also the pauses of
writers that came second; the figures are for the seconds of the simulated service. A run takes `--seconds` of these.
What comes second depends on chance, so that figures differ by some percent from run to run.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import numpy as np

import b2array
from b2array.errors import ConflictError
from b2array.store import base

NBYTES = 12_000
KEYS = {"key": "key", "secret": "secret", "client_kwargs": {"region_name": "us-east-1"}}
NO_CHECKSUMS = {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"}


class Bucket:
    """Objects with their ETags, behind a slow network."""

    def __init__(self, latency: float, interval: float) -> None:
        self.latency, self.interval = latency, interval
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.free: dict[str, float] = {}
        self.requests = 0

    async def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[str, bytes, str]:
        """Return the status, the content and the ETag that answer a request."""
        self.requests += 1
        await asyncio.sleep(self.latency / 2)
        clock = asyncio.get_running_loop().time
        while method == "PUT" and self.fits(path, headers) and (wait := self.free.get(path, 0.0) - clock()) > 0:
            await asyncio.sleep(wait)
        result = self._carried_out(method, path, headers, body)
        if method == "PUT" and result[2]:
            self.free[path] = clock() + self.interval
        await asyncio.sleep(self.latency / 2)
        return result

    def fits(self, path: str, headers: dict[str, str]) -> bool:
        """Whether the conditions of a request to write hold."""
        _, tag = self.objects.get(path, (b"", ""))
        expected = headers.get("if-match")
        return not ("if-none-match" in headers and tag) and (expected is None or expected.strip('"') == tag)

    def _carried_out(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[str, bytes, str]:
        content, tag = self.objects.get(path, (b"", ""))
        if method == "PUT":
            if not self.fits(path, headers):
                return "412 Precondition Failed", error("PreconditionFailed"), ""
            self.objects[path] = body, hashlib.md5(body).hexdigest()
            return "200 OK", b"", self.objects[path][1]
        if method == "POST":
            for name in re.findall("<Key>(.*?)</Key>", body.decode()):
                self.objects.pop(f"{path}/{name}", None)
            return "200 OK", b"<DeleteResult/>", ""
        if not tag:
            return "404 Not Found", error("NoSuchKey"), ""
        return _part(content, tag, headers["range"]) if "range" in headers else ("200 OK", content, tag)


def _part(content: bytes, tag: str, asked: str) -> tuple[str, bytes, str]:
    """Answer a request for a range of an object."""
    first, _, last = asked.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(0, len(content) - int(last))
    part = content[start : int(last) + 1 if first and last else None]
    if not part:
        return "416 Range Not Satisfiable", error("InvalidRange"), ""
    return "206 Partial Content", part, f"{tag} {start}-{start + len(part) - 1}/{len(content)}"


def error(code: str) -> bytes:
    """Return the body of an error."""
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


@contextmanager
def served(bucket: Bucket) -> Iterator[str]:
    """Serve a bucket in a thread; gives its URL."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
                method, path, _ = first.split(" ", 2)
                headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines}
                if headers.get("expect") == "100-continue":
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                status, content, tag = await bucket.answer(method, path.partition("?")[0], headers, body)
                tag, _, extent = tag.partition(" ")
                more = f'ETag: "{tag}"\r\n' if tag else ""
                more += f"Content-Range: bytes {extent}\r\n" if extent else ""
                more += "Last-Modified: Fri, 27 Nov 2026 00:00:00 GMT\r\n"
                writer.write(f"HTTP/1.1 {status}\r\n{more}Content-Length: {len(content)}\r\n\r\n".encode())
                if method != "HEAD":
                    writer.write(content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(talk, "127.0.0.1", 0, backlog=500), loop).result()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(server.close)


Change = Callable[[np.ndarray], object]


class Bench:
    """Makes what the writers change, and lets them write."""

    def __init__(self, url: str, options: dict[str, Any], writers: int) -> None:
        self.url, self.options, self.writers = url, options, writers

    def group(self, name: str, members: int) -> str:
        """Make a group with members of one chunk; return its URL."""
        url = f"{self.url}/{name}.b2d"
        group = b2array.open_group(url, "w-", storage_options=self.options)
        with group.transaction() as changes:
            for n in range(members):
                changes.create(f"m{n}", data=values(n), chunks=-1)
        return url

    def of_one_group(self) -> list[Change]:
        """Each writer changes another member of one group."""
        url = self.group("one", self.writers)
        return [self.filled(f"{url}/m{n}.b2nd") for n in range(self.writers)]

    def by_transactions(self) -> list[Change]:
        """In one group, each writer changes four members that no other writer changes, in one transaction."""
        url = self.group("four", 4 * self.writers)

        def writer(first: int) -> Change:
            group = b2array.open_group(url, "r+", storage_options=self.options)

            def change(data: np.ndarray) -> None:
                with group.transaction() as changes:
                    for n in range(first, first + 4):
                        changes[f"m{n}"][...] = data

            return change

        return [writer(4 * n) for n in range(self.writers)]

    def of_a_group_each(self) -> list[Change]:
        """Each writer has a group to itself, and changes a member of it."""
        return [self.filled(f"{self.group(f'each{n}', 1)}/m0.b2nd") for n in range(self.writers)]

    def of_arrays(self) -> list[Change]:
        """Each writer changes an array outside of a group."""
        changes = []
        for n in range(self.writers):
            url = f"{self.url}/array{n}.b2nd"
            b2array.asarray(values(n), url=url, chunks=-1, storage_options=self.options)
            changes.append(self.filled(url))
        return changes

    def filled(self, url: str) -> Change:
        """Return a function that fills an array."""
        array = b2array.open(url, "r+", storage_options=self.options)
        return lambda data: array.__setitem__(..., data)

    def by_forks(self, seconds: float) -> tuple[int, int, float]:
        """Let the writers change members of one group through forks, which one transaction merges, again and again."""
        group = b2array.open_group(self.group("forked", self.writers), "r+", storage_options=self.options)
        begin, done, serial = time.monotonic(), 0, count()
        while time.monotonic() - begin < seconds:
            with group.transaction() as changes:
                fork = changes.fork()

                def write(n: int, pickled: bytes) -> bytes:
                    fork: b2array.Group = pickle.loads(pickled)
                    fork[f"m{n}"][...] = values(next(serial))
                    return pickle.dumps(fork)

                with ThreadPoolExecutor(self.writers) as pool:
                    # As it goes to other processes and comes back.
                    come = pool.map(partial(write, pickled=pickle.dumps(fork)), range(self.writers))
                    changes.merge(*map(pickle.loads, come))
            done += self.writers
        return done, 0, time.monotonic() - begin

    def race(self, changes: list[Change], seconds: float) -> tuple[int, int, float]:
        """Let each writer change what it has, again and again; return how many commits and conflicts there were."""
        done, refused = [0] * len(changes), [0] * len(changes)
        begin = time.monotonic()

        def write(n: int) -> None:
            data = np.random.default_rng(n)
            while time.monotonic() - begin < seconds:
                try:
                    changes[n](data.random(NBYTES // 8))
                except ConflictError:
                    refused[n] += 1
                else:
                    done[n] += 1

        threads = [threading.Thread(target=write, args=(n,)) for n in range(len(changes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(done), sum(refused), time.monotonic() - begin


def values(seed: int) -> np.ndarray:
    """Return the items of one chunk."""
    return np.random.default_rng(seed).random(NBYTES // 8)


def measure(service: str, writers: int, latency: float, slower: float, seconds: float, only: str) -> None:
    """Print a line for each way to write."""
    ways = [
        ("members of one group", Bench.of_one_group),
        ("four members a transaction", Bench.by_transactions),
        ("forks, one commit for all", None),
        ("a group each", Bench.of_a_group_each),
        ("arrays outside a group", Bench.of_arrays),
    ]
    for label, prepare in [way for way in ways if only in way[0]]:
        bucket = Bucket(0, 0)
        with served(bucket) as endpoint:
            options = {**KEYS, "endpoint_url": endpoint, "config_kwargs": {**NO_CHECKSUMS, "max_pool_connections": 500}}
            bench = Bench("s3://bucket", options, writers)
            changes = [] if prepare is None else prepare(bench)
            bucket.latency, bucket.interval = slower * latency / 1e3, slower * (service == "gcs")
            bucket.requests = 0
            done, refused, took = bench.race(changes, slower * seconds) if changes else bench.by_forks(slower * seconds)
        rate = done / (took / slower)
        print(f"  {label:<28}{rate:>10.1f}{bucket.requests / max(1, done):>12.1f}{refused:>11}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--service", choices=["s3", "gcs"], default="s3")
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--latency", type=float, default=30, help="milliseconds that every request takes (default: 30)")
    parser.add_argument("--slower", type=float, default=20, help="how many times slower everything is (default: 20)")
    parser.add_argument("--seconds", type=float, default=5, help="how long, in seconds of the service (default: 5)")
    parser.add_argument("--only", default="", help="measure only the ways to write with this in their names")
    arguments = parser.parse_args()
    original = base.pause
    base.pause = lambda attempt: arguments.slower * original(attempt)
    for writers in arguments.writers:
        print(f"{arguments.service}, {writers} writers, {arguments.latency:g} ms a request")
        print(f"  {'':<28}{'commits/s':>10}{'requests':>12}{'conflicts':>11}")
        measure(arguments.service, writers, arguments.latency, arguments.slower, arguments.seconds, arguments.only)


if __name__ == "__main__":
    main()
