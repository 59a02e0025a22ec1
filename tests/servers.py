"""Servers for tests. They listen on the loopback interface only, and stop with the test run or with their parent."""

from __future__ import annotations

import hashlib
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

S3_KEY = "loopback-access-key"
S3_SECRET = "loopback-secret-key"


_SYN_SENT = "02"


class _Calm:
    """Makes threads wait until all other threads of this process only wait as well."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.has_come: threading.Event | None = None

    def wait(self) -> None:
        """Wait until the process is calm. The first thread that waits checks this for all of them."""
        with self.lock:
            is_first = self.has_come is None
            has_come = self.has_come = self.has_come or threading.Event()
        if not is_first:
            has_come.wait()
            return
        latest = time.monotonic() + 20
        while not self._is_here() and time.monotonic() < latest:
            pass
        with self.lock:
            self.has_come = None
        has_come.set()

    def _is_here(self, pause: float = 0.01) -> bool:
        before = time.process_time()
        time.sleep(pause)
        is_idle = time.process_time() - before < pause / 4
        return is_idle and not self._some_thread_is_ready() and not self._some_bytes_are_under_way()

    def _some_thread_is_ready(self) -> bool:
        """Return whether another thread runs, or waits only for a processor."""
        own = str(threading.get_native_id())
        for thread in Path("/proc/self/task").glob("*/stat"):
            # A thread may end meanwhile.
            with suppress(OSError):
                state = thread.read_text().rpartition(")")[2].split()[0]
                if state in "RD" and thread.parent.name != own:
                    return True
        return False

    def _some_bytes_are_under_way(self) -> bool:
        """Return whether the kernel still has to deliver bytes or connections between sockets of this process.

        On a busy machine, the kernel may do that some time after a client has sent its request.
        """
        table = Path("/proc/net/tcp")
        if not table.exists():
            return False
        own = set()
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                own.add(str(link.readlink()))
        for line in table.read_text().splitlines()[1:]:
            _, _, _, state, queues, *_, inode = line.split()[:10]
            is_busy = state == _SYN_SENT or queues != "00000000:00000000"
            if is_busy and f"socket:[{inode}]" in own:
                return True
        return False


_CALM = _Calm()


def answer_after(delay: float) -> None:
    """Wait before an answer: at least this many seconds, and then until the client does nothing but wait for answers.

    The client is in this process. So all requests of one wave arrive before the server answers the first of them, even
    on a busy machine. With a delay of 0, this returns at once.
    """
    if delay:
        time.sleep(delay)
        _CALM.wait()


@dataclass
class RangeServer:
    """An HTTP server of objects in memory that honours ranges and entity tags, and remembers what it was asked."""

    url: str
    objects: dict[str, bytes] = field(default_factory=dict)
    """Path without its leading slash -> content. May be changed at any time."""
    statuses: dict[str, int] = field(default_factory=dict)
    """Path -> status to answer with instead."""
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path with query, and Range header of every request."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """The headers of every request. Clients write the names in different ways: here they begin with capitals."""
    replies: list[bytes | str] = field(default_factory=list)
    """What the next requests get instead: bytes to send before the connection is closed, or "reset"."""
    delay: float = 0.0
    """Seconds that every answer takes at least: see `answer_after`."""
    ranges: bool = True
    """Whether ranges are honoured."""
    ends: bool = True
    """Whether ranges are honoured that name only how many of the last bytes are wanted."""
    tags: bool = True
    """Whether answers have entity tags."""
    fickle: bool = False
    """Whether each answer has another entity tag."""
    under_way: int = 0
    most_under_way: int = 0
    """How many requests were answered at the same time at most."""
    depth: int = 0
    """Length of the longest chain of requests that came after each other's answers: round trips, seen from here."""

    def url_of(self, path: str) -> str:
        return f"{self.url}/{path}"

    def waves_of(self, call: Callable[[], object]) -> int:
        """Return how many round trips a call takes. Requests are counted from the call's beginning, or its last reset.

        The call may reset `requests` and `depth` itself, after steps that should not count.
        """
        self.requests.clear()
        self.delay, self.depth = 0.02, 0
        call()
        self.delay = 0
        return self.depth

    @property
    def nbytes_asked(self) -> int:
        """Bytes in the ranges of all requests."""
        total = 0
        for _, _, header in self.requests:
            if header:
                start, _, stop = header.removeprefix("bytes=").partition("-")
                total += int(stop) + 1 - int(start) if start else int(stop)
        return total


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    served: RangeServer
    lock: threading.Lock

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        served = self.served
        with self.lock:
            served.headers.append({name.title(): value for name, value in self.headers.items()})
            served.requests.append((self.command, self.path, self.headers.get("Range")))
            served.under_way += 1
            served.most_under_way = max(served.most_under_way, served.under_way)
            depth = served.depth + 1
        try:
            answer_after(served.delay)
            status, headers, content = self._content(urlsplit(self.path).path.lstrip("/"))
        finally:
            with self.lock:
                served.under_way -= 1
                served.depth = max(served.depth, depth)
        if served.replies:
            self._misbehave(served.replies.pop())
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _misbehave(self, reply: bytes | str) -> None:
        self.close_connection = True
        if reply == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        self.wfile.write(reply)

    def _content(self, path: str) -> tuple[int, dict[str, str], bytes]:
        status = self.served.statuses.get(path)
        content = self.served.objects.get(path)
        if status is not None or content is None:
            return status or 404, {}, b""
        salt = str(len(self.served.requests)).encode() if self.served.fickle else b""
        tag = f'"{hashlib.blake2b(content, digest_size=8, salt=salt).hexdigest()}"'
        headers = {"ETag": tag} if self.served.tags else {}
        if self.headers.get("If-Match", tag) != tag:
            return 412, headers, b""
        wanted = self.headers.get("Range")
        if wanted is None or not self.served.ranges:
            return 200, headers, content
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        if not first and not self.served.ends:
            return 200, headers, content
        start, stop = (int(first), int(last) + 1 if last else len(content)) if first else (-int(last), len(content))
        start = max(0, start + len(content)) if start < 0 else start
        if start >= len(content):
            return 416, {**headers, "Content-Range": f"bytes */{len(content)}"}, b""
        part = content[start:stop]
        headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
        return 206, headers, part


class Server(ThreadingHTTPServer):
    """A server with a thread for each connection."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away

    def __init__(self, *args: object, **kwargs: object) -> None:
        self._connections: set[socket.socket] = set()
        super().__init__(*args, **kwargs)

    def process_request(self, request: socket.socket, client_address: object) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Close connections as well, which clients keep for later: each has two descriptors in this process."""
        super().server_close()
        for connection in tuple(self._connections):
            # The client may have closed it.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def received(request: BaseHTTPRequestHandler, nbytes: int | None = None) -> bytes:
    """Read the body of a request, or bytes of it. A client that is killed meanwhile is an error, not a short body."""
    if nbytes is None:
        nbytes = int(request.headers.get("Content-Length") or 0)
    body = request.rfile.read(nbytes)
    if len(body) < nbytes:
        raise ConnectionError(f"expected {nbytes} bytes, found {len(body)}")
    return body


@contextmanager
def range_server(**settings: object) -> Iterator[RangeServer]:
    """Run a `RangeServer` in a thread."""
    handler = type("Handler", (_Handler,), {"lock": threading.Lock()})
    server = Server(("127.0.0.1", 0), handler)
    served = RangeServer(f"http://127.0.0.1:{server.server_address[1]}", **settings)
    handler.served = served
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def directory_server(directory: Path) -> Iterator[str]:
    """Serve the files below a directory, without ranges; gives the URL. Directories are pages, as on most servers."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), partial(Quiet, directory=directory))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def s3_server() -> Iterator[dict[str, object]]:
    """Run moto's S3 server in a process of its own, which ends with this one; gives storage options for it."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("moto_server.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"moto's server ended with status {process.wait()}")
        try:
            yield {
                "key": S3_KEY,
                "secret": S3_SECRET,
                "endpoint_url": f"http://127.0.0.1:{port}",
            }
        finally:
            process.stdin.close()
            process.wait(timeout=30)
