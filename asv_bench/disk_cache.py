"""The caches on disk of b2array and python-blosc2, in one run: requests and bytes over HTTP, session by session.

    python asv_bench/disk_cache.py [--rounds N]

Each session is a new process that opens the same array and reads the same slices. Between the third and the fourth
session, b2array commits one item to the file on the server. python-blosc2's cache assumes that objects never change
(``assume_immutable=True``), so its values may then be old; the last column says so. The last table has the median time
of reads that are all in the cache, as a multiple of the same reads from a local file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

import b2array

SHAPE, CHUNKS, BLOCKS = (240, 260, 128), (60, 65, 64), (20, 33, 32)
KEYS = {"box": (slice(20, 80), slice(30, 90), slice(10, 60)), "plane": (100,), "item": (7, 100, 3)}

SESSION = """
import json, sys
import numpy as np
library, url, directory = sys.argv[1:]
if library == "b2array":
    import b2array
    b2array.config.disk_cache = directory
    a = b2array.open(url)
else:
    import blosc2
    a = blosc2.open(url, mode="r", lazy=True, cache_dir=directory, assume_immutable=True)
keys = [tuple(slice(*k) if isinstance(k, list) else k for k in key) for key in json.loads(sys.stdin.read())]
print(json.dumps([float(np.sum(a[key])) for key in keys]))
"""


class Served:
    """A file, and what was asked and sent."""

    def __init__(self) -> None:
        self.content = b""
        self.requests = 0
        self.nbytes = 0


@contextmanager
def serve(served: Served) -> Iterator[str]:
    """Serve a file with ranges and entity tags; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            served.requests += 1
            body, status, headers = b"", 404, {}
            if self.path == "/a.b2nd":
                content = served.content
                tag = f'"{hashlib.md5(content).hexdigest()}"'
                headers, body, status = {"ETag": tag, "Accept-Ranges": "bytes"}, content, 200
                wanted = self.headers.get("Range")
                if self.headers.get("If-Match", tag) != tag:
                    body, status = b"", 412
                elif wanted:
                    first, _, last = wanted.removeprefix("bytes=").partition("-")
                    start = int(first) if first else max(0, len(content) - int(last))
                    stop = min(int(last) + 1, len(content)) if first and last else len(content)
                    body, status = content[start:stop], 206
                    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                served.nbytes += len(body)
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/a.b2nd"
    finally:
        server.shutdown()
        server.server_close()


def session(library: str, url: str, directory: Path) -> list[float]:
    """Read the slices in a new process; return their sums."""
    keys = [[[k.start, k.stop] if isinstance(k, slice) else k for k in key] for key in KEYS.values()]
    command = [sys.executable, "-c", SESSION, library, url, str(directory)]
    done = subprocess.run(command, input=json.dumps(keys), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    sums: list[float] = json.loads(done.stdout.splitlines()[-1])
    return sums


def compare_sessions(path: Path, x: np.ndarray, folder: Path) -> None:
    """Print the requests and bytes of each session of both libraries."""
    served = Served()
    served.content = path.read_bytes()
    print(f"{'session':22}{'library':10}{'requests':>9}{'bytes':>12}  values")
    with serve(served) as url:
        for name in ("first", "second", "third", "after a commit"):
            if name == "after a commit":
                with b2array.open(path, "r+") as a:
                    a[25, 35, 15] = x[25, 35, 15] = -1000.0
                served.content = path.read_bytes()
            expected = [float(np.sum(x[key])) for key in KEYS.values()]
            for library in ("b2array", "blosc2"):
                served.requests = served.nbytes = 0
                sums = session(library, url, folder / library)
                verdict = "right" if np.allclose(sums, expected) else "old"
                print(f"{name:22}{library:10}{served.requests:9}{served.nbytes:12}  {verdict}")


def compare_times(path: Path, folder: Path, rounds: int) -> None:
    """Print the time of cached reads as a multiple of the time of local ones."""
    served = Served()
    served.content = path.read_bytes()
    with serve(served) as url, b2array.config.using(disk_cache=folder / "times", cache_bytes=0):
        local, remote = b2array.open(path), b2array.open(url)
        for name, key in {**KEYS, "all": (slice(None),)}.items():
            spent: dict[Any, list[float]] = {local: [], remote: []}
            remote[key]
            for _ in range(rounds):
                for array, times in spent.items():
                    begun = time.perf_counter()
                    array[key]
                    times.append(time.perf_counter() - begun)
            medians = [statistics.median(times) for times in spent.values()]
            print(f"{name:22}{medians[0] * 1e3:9.2f} ms local {medians[1] / medians[0]:6.2f} times as long cached")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    rounds = parser.parse_args().rounds
    rng = np.random.default_rng(0)
    x = np.cumsum(rng.integers(-9, 10, SHAPE), axis=0).astype("f8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "a.b2nd"
        b2array.asarray(x, url=path, chunks=CHUNKS, blocks=BLOCKS)
        compare_sessions(path, x, folder)
        compare_times(path, folder, rounds)


if __name__ == "__main__":
    main()
