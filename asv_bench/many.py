"""What `read_many` saves: boxes of one array and whole arrays over a network, and boxes of a local array.

    python asv_bench/many.py [--delay MILLISECONDS] [--items N] [--rounds N]

A server on the loopback interface waits before each answer, as a network would. It does next to nothing else, so that
the clients are measured. Over the network the figures are multiples of that wait: what one request takes at least.
Locally they say how many times a loop takes what `read_many` takes. All are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import b2array

SHAPE, CHUNKS, BLOCKS = (200, 400, 400), (50, 100, 100), (10, 25, 25)
BOXES, ARRAYS = 60, 12
MISSING = b"<Error><Code>NoSuchKey</Code></Error>"


def serve(directory: str, delay: float, port: Connection) -> None:
    """Serve files over HTTP, with ranges, as S3 does for a reader whose signature nobody looks at."""
    files: dict[str, tuple[bytes, str]] = {}

    def answer(method: str, path: str, asked: str | None) -> bytes:
        name = path.partition("?")[0].rpartition("/")[2]
        if name not in files:
            try:
                content = Path(directory, name).read_bytes()
            except OSError:
                head = (
                    f"HTTP/1.1 404 Not Found\r\nContent-Type: application/xml\r\nContent-Length: {len(MISSING)}\r\n\r\n"
                )
                return head.encode() + (MISSING if method == "GET" else b"")
            files[name] = content, hashlib.md5(content).hexdigest()
        body, tag = files[name]
        status, size, more = "200 OK", len(body), ""
        if asked is not None:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, size - int(last))
            stop = min(int(last) + 1, size) if first and last else size
            if start >= size:
                return f"HTTP/1.1 416 No\r\nContent-Range: bytes */{size}\r\nContent-Length: 0\r\n\r\n".encode()
            body, status = body[start:stop], "206 Partial Content"
            more = f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n"
        head = (
            f'HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nETag: "{tag}"\r\nAccept-Ranges: bytes\r\n{more}'
            "Last-Modified: Fri, 27 Nov 2026 00:00:00 GMT\r\nContent-Type: application/octet-stream\r\n\r\n"
        )
        return head.encode() + (body if method == "GET" else b"")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, path, _ = first.split(" ", 2)
                ranges = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("range:")]
                await asyncio.sleep(delay)
                writer.write(answer(method, path, ranges[0] if ranges else None))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0, limit=2**20)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


@contextmanager
def served(directory: Path, delay: float) -> Iterator[int]:
    """Let a process of its own serve a directory, and give its port."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(str(directory), delay, theirs))
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def clients(port: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return a prefix for names, and the options of `open`, for each client."""
    from obstore.fsspec import FsspecStore

    endpoint = f"http://127.0.0.1:{port}"
    account = {"key": "a", "secret": "b", "endpoint_url": endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    fast = FsspecStore(
        "s3",
        access_key_id="a",
        secret_access_key="b",
        endpoint=endpoint,
        region="us-east-1",
        client_options={"allow_http": True},
    )
    return {
        "HTTP": (f"{endpoint}/bench/", {}),
        "s3fs": ("s3://bench/", {"storage_options": account}),
        "obstore": ("bench/", {"fs": fast}),
    }


def boxes(seed: int, shape: tuple[int, ...], items: int) -> list[Any]:
    """Return keys of random boxes."""
    chance = np.random.default_rng(seed)
    starts = ([int(chance.integers(n - items)) for n in shape] for _ in range(BOXES))
    return [tuple(slice(start, start + items) for start in each) for each in starts]


def seconds(call: Callable[[], object]) -> float:
    """Return what a call takes by the clock, without blocks that were read before."""
    b2array.config.cache_bytes, kept = 0, b2array.config.cache_bytes
    b2array.config.cache_bytes = kept
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def over_a_network(directory: Path, items: int, rounds: int, delay: float) -> None:
    """Print what boxes and whole arrays take through each client, in multiples of the delay."""
    with served(directory, delay) as port:
        for name, (prefix, options) in clients(port).items():
            together, one_by_one, arrays = [], [], []
            for seed in range(rounds):
                keys = boxes(seed, SHAPE, items)
                a = b2array.open(f"{prefix}a.b2nd", **options)
                together.append(seconds(lambda: b2array.read_many([(a, key) for key in keys])) / delay)  # noqa: B023
                a = b2array.open(f"{prefix}a.b2nd", **options)
                one_by_one.append(seconds(lambda: [a[key] for key in keys[:10]]) * BOXES / 10 / delay)  # noqa: B023
                several = [b2array.open(f"{prefix}{n}.b2nd", **options) for n in range(ARRAYS)]
                arrays.append(seconds(lambda: b2array.read_many([(each, ...) for each in several])) / delay)  # noqa: B023
            print(
                f"{name:8}  {BOXES} boxes of {items}^3: {statistics.median(together):5.1f} waits"
                f" (one by one {statistics.median(one_by_one):5.1f});"
                f" {ARRAYS} arrays of 2 MB: {statistics.median(arrays):5.1f}"
            )


def on_a_disk(directory: Path, items: int, rounds: int) -> None:
    """Print how many times a loop takes what `read_many` takes, for blocks of several sizes."""
    x = b2array.open(directory / "a.b2nd")[:]
    for side in (40, 20):
        url = directory / f"blocks{side}.b2nd"
        b2array.asarray(x, url=url, chunks=(200, 200, 200), blocks=(side,) * 3)
        ratios = []
        for seed in range(rounds):
            keys = boxes(seed, SHAPE, items)
            fresh = [b2array.open(url) for _ in range(2)]
            loop = seconds(lambda: [fresh[0][key] for key in keys])  # noqa: B023
            ratios.append(loop / seconds(lambda: b2array.read_many([(fresh[1], key) for key in keys])))  # noqa: B023
        print(
            f"disk      {BOXES} boxes of {items}^3, blocks of {side}^3: {statistics.median(ratios):.2f} times as fast"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, default=30.0)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        x = np.cumsum(np.random.default_rng(0).standard_normal(SHAPE, dtype="f4"), axis=2)
        b2array.asarray(x, url=directory / "a.b2nd", chunks=CHUNKS, blocks=BLOCKS)
        for n in range(ARRAYS):
            b2array.asarray(x[:50, :100, :100] + n, url=directory / f"{n}.b2nd", chunks=CHUNKS, blocks=BLOCKS)
        over_a_network(directory, asked.items, asked.rounds, asked.delay / 1e3)
        on_a_disk(directory, 40, asked.rounds)


if __name__ == "__main__":
    main()
