"""What reading through each client takes: whole arrays and small boxes, beside zarr through the same client.

    python asv_bench/clients.py [--megabytes N] [--rounds N] [--delay MILLISECONDS] [--only NAME ...]

The clients are s3fs, obstore, gcsfs, adlfs and fsspec's HTTP. The servers are those of the tests, on the loopback
interface. A process in front of each keeps its answers in memory and counts requests, so that no server is what is
measured. b2array and zarr have the same chunks, one object each, and their own defaults else; "one file" is b2array's
contiguous layout. Everything reads in turns, with a new handle each time. Times are medians: wall clock, and processor
time of the reading process.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import fsspec
import numpy as np
import zarr
from timing import Times, in_turns

import b2array

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from clouds import cloud, connection_string, through_obstore

Array = np.ndarray[Any, Any]
BUCKET = "bench"
SIDE = 256
THICK = 32
COUNTS = "/-/counts"


class Front(BaseHTTPRequestHandler):
    """Passes requests on, and answers from memory where it can."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    upstream: tuple[str, int]
    delay: float
    lock = threading.Lock()
    kept: dict[tuple[str | None, ...], tuple[int, list[tuple[str, str]], bytes]]
    requests = 0

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == COUNTS:
            content = json.dumps(type(self).requests).encode()
            type(self).requests = 0
            self._send(200, [], content)
            return
        with self.lock:
            type(self).requests += 1
        time.sleep(self.delay)
        asked = self.command, self.path, self.headers.get("Range") or self.headers.get("x-ms-range")
        if self.command not in ("GET", "HEAD"):
            self.kept.clear()
        found = self.kept.get(asked)
        if found is None:
            found = self._passed_on(body)
            if self.command in ("GET", "HEAD") and found[0] in (200, 206):
                self.kept[asked] = found
        self._send(*found)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - the base class calls them so

    def _passed_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self.upstream, timeout=60)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection", "expect"):
                connection.putheader(name, value)
        connection.endheaders(body or None)
        answer = connection.getresponse()
        content = answer.read()
        own = "connection", "transfer-encoding", "keep-alive"
        headers = [pair for pair in answer.getheaders() if pair[0].lower() not in own]
        connection.close()
        return answer.status, headers, content

    def _send(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        length = [value for name, value in headers if name.lower() == "content-length"]
        for name, value in headers:
            if name.lower() != "content-length":
                self.send_header(name, value)
        self.send_header("Content-Length", length[0] if length and self.command == "HEAD" else str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Server(ThreadingHTTPServer):
    """Serves until the process ends."""

    daemon_threads = True
    request_queue_size = 128


def serve(kind: str, delay: float) -> None:
    """Run a server and the front, say where both are, and end with the parent."""
    with cloud(kind) as native:
        native.make_bucket(BUCKET)
        place = urlsplit(native.endpoint)
        front = type("Front", (Front,), {"upstream": (place.hostname, place.port), "delay": delay, "kept": {}})
        server = Server(("127.0.0.1", 0), front)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        sys.stdin.read()


@contextmanager
def served(kind: str, delay: float) -> Iterator[str]:
    """Run a server in a process of its own; gives its URL."""
    command = [sys.executable, "-W", "ignore", __file__, "--serve", kind, "--delay", str(delay)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("expected pipes to the server")
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


class Client(NamedTuple):
    """A way to a server."""

    kind: str
    url: str
    options: Callable[[str], dict[str, Any]]


def native(kind: str) -> Callable[[str], dict[str, Any]]:
    """Return a function from the URL of a server to the storage options of the client in Python."""
    keys = {"key": "loopback-access-key", "secret": "loopback-secret-key"}
    return {
        "s3": lambda endpoint: {"endpoint_url": endpoint, **keys},
        "gcs": lambda endpoint: {"endpoint_url": endpoint, "token": "anon", "project": "loopback"},
        "azure": lambda endpoint: {"connection_string": connection_string(endpoint)},
    }[kind]


def rusty(kind: str) -> Callable[[str], dict[str, Any]]:
    """Return a function from the URL of a server to the options with obstore."""
    return lambda endpoint: through_obstore(kind, endpoint)


CLIENTS = {
    "s3fs": Client("s3", f"s3://{BUCKET}", native("s3")),
    "obstore, S3": Client("s3", f"s3://{BUCKET}", rusty("s3 obstore")),
    "HTTP": Client("s3", "", lambda _: {}),  # the server of S3's protocol lets everybody read
    "gcsfs": Client("gcs", f"gs://{BUCKET}", native("gcs")),
    "obstore, GCS": Client("gcs", f"gs://{BUCKET}", rusty("gcs obstore")),
    "adlfs": Client("azure", f"az://{BUCKET}", native("azure")),
    "obstore, Azure": Client("azure", f"az://{BUCKET}", rusty("azure obstore")),
}
ZARR = "s3fs", "obstore, S3", "HTTP"


def write(data: Array, kind: str, endpoint: str) -> None:
    """Write the arrays."""
    chunks = (THICK, SIDE, SIDE)
    protocol = {"s3": "s3", "gcs": "gs", "azure": "az"}[kind]
    options = native(kind)(endpoint)
    for layout in ("sparse", "contiguous"):
        url = f"{protocol}://{BUCKET}/{layout}.b2nd"
        b2array.asarray(data, url=url, layout=layout, chunks=chunks, storage_options=options)
    if kind == "s3":
        made = zarr.create_array(
            f"s3://{BUCKET}/z.zarr", shape=data.shape, dtype=data.dtype, chunks=chunks, storage_options=options
        )
        made[...] = data


def openers(name: str, endpoint: str) -> dict[str, Callable[[], Any]]:
    """Return functions that open the arrays through a client."""
    client = CLIENTS[name]
    options = client.options(endpoint)
    base = client.url or f"{endpoint}/{BUCKET}"

    def opener(layout: str) -> Callable[[], Any]:
        def opened() -> Any:
            b2array.config.obstore = "obstore" in name  # by itself, it would serve the other clients as well
            return b2array.open(f"{base}/{layout}", **given)

        return opened

    found: dict[str, Callable[[], Any]] = {
        "b2array": opener("sparse.b2nd/" if name == "HTTP" else "sparse.b2nd"),
        "b2array, one file": opener("contiguous.b2nd"),
    }
    given = {"storage_options": options}
    if name in ZARR:
        found["zarr"] = zarr_opener(name, base, endpoint, options)
    return found


def zarr_opener(name: str, base: str, endpoint: str, options: dict[str, Any]) -> Callable[[], Any]:
    """Return a function that opens zarr's array through a client."""
    if name != "obstore, S3":
        return lambda: zarr.open_array(f"{base}/z.zarr", mode="r", storage_options=options)
    from obstore.store import S3Store

    keys = {"access_key_id": "loopback-access-key", "secret_access_key": "loopback-secret-key", "region": "us-east-1"}

    def opened() -> Any:
        store = S3Store(BUCKET, prefix="z.zarr", endpoint=endpoint, client_options={"allow_http": True}, **keys)
        return zarr.open_array(zarr.storage.ObjectStore(store, read_only=True), mode="r")

    return opened


def count(endpoint: str) -> int:
    """Return how many requests there were since the last call."""
    with urllib.request.urlopen(endpoint + COUNTS) as answer:
        return int(json.load(answer))


def measured(
    open_it: dict[str, Callable[[], Any]], key: Any, rounds: int, endpoint: str, expected: Array
) -> dict[str, tuple[int, Times]]:
    """Open and read in turns; return requests and times."""
    requests = {}
    for name, opened in open_it.items():
        if not np.array_equal(opened()[key], expected):  # this also fills the front's memory
            raise RuntimeError(f"{name} read wrong values")
        count(endpoint)
        opened()[key]
        requests[name] = count(endpoint)
    times = in_turns({name: lambda _, f=opened: lambda: f()[key] for name, opened in open_it.items()}, rounds)
    return {name: (requests[name], times[name]) for name in open_it}


def main() -> None:
    """Write, read, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--delay", type=float, default=0, help="milliseconds that every answer takes")
    parser.add_argument("--only", nargs="+", choices=CLIENTS, default=list(CLIENTS), metavar="NAME")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.delay / 1e3)
        return
    b2array.config.cache_bytes = 0
    fsspec.config.conf["use_listings_cache"] = False
    thick = max(1, given.megabytes * 10**6 // (4 * THICK * SIDE * SIDE)) * THICK
    z, y, x = np.indices((thick, SIDE, SIDE), sparse=True)
    data = (np.sin(z / 9) + np.cos(y / 17) * np.sin(x / 23)).astype("f4")
    data += np.random.default_rng(0).normal(0, 1e-3, data.shape).astype("f4")
    small = np.s_[THICK + 2 : THICK + 6, 100:110, 90:120]
    print(f"{data.nbytes / 1e6:.0f} MB, {given.delay:g} ms a request, {given.rounds} rounds")
    print(f"{'open and read':<34}{'whole: n':>10}{'ms':>8}{'cpu ms':>8}{'box: n':>10}{'ms':>8}{'cpu ms':>8}")
    for kind in dict.fromkeys(CLIENTS[name].kind for name in given.only):
        with served(kind, given.delay) as endpoint:
            write(data, kind, endpoint)
            open_it = {}
            for name in given.only:
                if CLIENTS[name].kind == kind:
                    open_it |= {f"{name}: {way}": opened for way, opened in openers(name, endpoint).items()}
            whole = measured(open_it, ..., given.rounds, endpoint, data)
            box = measured(open_it, small, 4 * given.rounds, endpoint, data[small])
            for name in open_it:
                shown = "".join(
                    f"{requests:>10}{wall * 1e3:>8.1f}{cpu * 1e3:>8.1f}"
                    for requests, (wall, cpu) in (whole[name], box[name])
                )
                print(f"{name:<34}{shown}")


if __name__ == "__main__":
    main()
