"""The object stores that the tests run against, and a gate in front of them that loses and refuses requests."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from http.server import BaseHTTPRequestHandler
from importlib.util import find_spec
from ssl import SSLContext
from urllib.parse import unquote, urlsplit

import pytest
from gcs_server import gcs_server
from servers import S3_KEY, S3_SECRET, Server, received, s3_server

from b2array.store.open import FILE_SYSTEM

OBSTORE = ("s3 obstore", "gcs obstore", "azure obstore")
KINDS = ("s3", "gcs", "azure", *OBSTORE)

AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Those that Azurite's documentation names for everybody."""


def skip(reason: str) -> None:
    """Skip a test whose server is not there; fail where all servers are required, as in CI."""
    if os.environ.get("B2ARRAY_ALL_SERVERS"):
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass
class Cloud:
    """A server, and how file systems of fsspec reach it."""

    kind: str
    protocol: str
    options: dict[str, object]
    endpoint: str

    native: dict[str, object] | None = None
    """For obstore: the options of the file system that others use."""

    @property
    def fs(self) -> object:
        """A file system for it, which remembers no listings."""
        import fsspec

        return fsspec.filesystem(self.protocol, **(self.native or self.options), use_listings_cache=False)

    def make_bucket(self, name: str) -> str:
        """Make a bucket; returns its URL."""
        if self.protocol == "s3":
            self.fs.call_s3("create_bucket", Bucket=name)
        elif self.protocol == "gs":
            self.fs.call("POST", "b", project="loopback", json={"name": name})
        else:
            self.fs.mkdir(name)
        return f"{self.protocol}://{name}"

    def through(self, endpoint: str, **options: object) -> dict[str, object]:
        """Return the options to reach the server by another endpoint."""
        if self.kind in OBSTORE:
            return through_obstore(self.kind, endpoint, **options)
        if self.kind == "azure":
            return {"connection_string": connection_string(endpoint), **options}
        return {**self.options, "endpoint_url": endpoint, **options}


def through_obstore(kind: str, endpoint: str, **options: object) -> dict[str, object]:
    """Return storage options with a file system of obstore."""
    from obstore.fsspec import FsspecStore

    local = {"client_options": {"allow_http": True, **options.pop("client_options", {})}}
    local["retry_config"] = {"max_retries": 3, "backoff": {"init_backoff": timedelta(milliseconds=1)}}
    if kind == "s3 obstore":
        keys = {"access_key_id": S3_KEY, "secret_access_key": S3_SECRET, "region": "us-east-1"}
        fs = FsspecStore("s3", endpoint=endpoint, **keys, **local, **options)
    elif kind == "azure obstore":
        keys = {"account_name": AZURE_ACCOUNT, "account_key": AZURE_KEY}
        fs = FsspecStore("az", endpoint=f"{endpoint}/{AZURE_ACCOUNT}", **keys, **local, **options)
    else:
        account = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
        account |= {"private_key_id": ""}
        fs = FsspecStore("gs", service_account_key=json.dumps(account), **local, **options)
    return {FILE_SYSTEM: fs}


def connection_string(endpoint: str) -> str:
    """Return what Azure's client asks for."""
    return (
        f"DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};"
        f"BlobEndpoint={endpoint}/{AZURE_ACCOUNT};"
    )


def _require(package: str) -> None:
    if find_spec(package) is None:
        skip(f"needs {package}")


def by_obstore(native: Cloud) -> Cloud:
    """Return the way through obstore to a server that runs."""
    _require("obstore")
    kind = f"{native.kind} obstore"
    options = through_obstore(kind, native.endpoint)
    return Cloud(kind, native.protocol, options, native.endpoint, native.options)


@cache
def _share_what_clients_of_s3_read() -> None:
    """Let botocore read the descriptions of its services and the known certificates once, and not for each new client.

    Each of the two takes about as long as a test. No server here has a certificate.
    """
    from aiobotocore.httpsession import AIOHTTPSession
    from botocore import session

    session.create_loader = cache(session.create_loader)
    contexts: dict[object, SSLContext] = {}
    build = AIOHTTPSession._build_verify_context

    def shared(http: AIOHTTPSession) -> SSLContext:
        if http._verify not in contexts:
            contexts[http._verify] = build(http)
        return contexts[http._verify]

    AIOHTTPSession._build_verify_context = shared


@contextmanager
def cloud(kind: str) -> Iterator[Cloud]:
    """Run the server of a kind, which fsspec's own file system reaches."""
    _require({"s3": "s3fs", "gcs": "gcsfs", "azure": "adlfs"}[kind])
    if kind == "s3":
        _share_what_clients_of_s3_read()
    if kind == "azure":
        with azurite() as endpoint:
            yield Cloud(kind, "az", {"connection_string": connection_string(endpoint)}, endpoint)
        return
    with {"s3": s3_server, "gcs": gcs_server}[kind]() as options:
        yield Cloud(kind, {"s3": "s3", "gcs": "gs"}[kind], options, options["endpoint_url"])


@contextmanager
def azurite() -> Iterator[str]:
    """Run Azurite in a process of its own; gives its URL."""
    command = shutil.which("azurite-blob")
    if command is None:
        skip("needs Azurite: npm install azurite, and its node_modules/.bin in the PATH")
    options = "--blobHost 127.0.0.1 --blobPort 0 --inMemoryPersistence --skipApiVersionCheck"
    with (
        tempfile.TemporaryDirectory() as directory,
        subprocess.Popen(
            [command, *options.split(), "--silent", "--disableTelemetry"],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        try:
            for line in process.stdout:
                if "listens on" in line or "listening at" in line:
                    yield line[line.index("http://") :].split()[0]
                    break
            else:
                raise RuntimeError(f"Azurite ended with status {process.wait()}")
        finally:
            process.terminate()


BUSY = "<Error><Code>OperationAborted</Code><Message>A conflicting operation is in progress.</Message></Error>"
"""The text of the answer 409 of a server that has compared nothing, because another request was changing the object."""

CONDITIONS = ("If-Match", "If-None-Match", "x-goog-if-generation-match")
"""The headers with conditions for writing. gcsfs puts its condition into the query."""


class Request(str):
    """A request, as its method and its path. `has_condition` says whether the server compares before it writes."""

    __slots__ = ("has_condition",)

    has_condition: bool

    @property
    def reads(self) -> bool:
        """Whether the request changes nothing."""
        return self.startswith(("GET ", "HEAD "))

    @property
    def lists(self) -> bool:
        """Whether the request lists objects."""
        query = self.partition("?")[2]
        return any(part in query for part in ("list-type=", "prefix=", "comp=list"))


class Gate:
    """Stands in front of a server, numbers requests, and does to some of them what networks and servers do.

    The rule says what becomes of a request: None (it passes), a status to answer with, or that and a text, "dropped"
    (it does not arrive), "lost" (it arrives, its answer does not), "denied" (it arrives, and the answer is that it
    may not), "failed" (it arrives, and the answer is that the server cannot now), "twice" (it arrives twice), "late"
    (it arrives when the client has given up), "held" (the answer is that it may not, but it arrives when `release` is
    called), or "overtaken" (it arrives, then `overtake` is called, and the answer is lost). A function is called for
    what becomes of it.
    """

    def __init__(self, endpoint: str) -> None:
        self.upstream = urlsplit(endpoint)
        self.lock = threading.Lock()
        self.under_way = 0
        self.held: list[Callable[[], object]] = []
        self.overtake: Callable[[], object] = lambda: None
        self.late = 0.6
        self.arm()

    def arm(self, rule: Callable[[int, str], object] = lambda number, what: None) -> None:
        """Begin to count again, by another rule."""
        with self.lock:
            self.rule, self.asked, self.fired, self.paused = rule, list[str](), 0, False

    def wait(self) -> None:
        """Wait until no request is under way."""
        while self.under_way:
            time.sleep(0.01)

    def release(self) -> None:
        """Let requests that were held arrive."""
        while self.held:
            self.held.pop(0)()

    def follow(self, fate: object) -> None:
        """Let another writer overtake, if the request that has just arrived is to be overtaken."""
        if fate == "overtaken":
            self.overtake()

    def judge(self, what: Request) -> object:
        """Count a request, and return what becomes of it."""
        with self.lock:
            if self.paused:
                return None
            fate = self.rule(len(self.asked), what)
            self.asked.append(what)
            self.fired += fate is not None
            return fate


class _GateHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    gate: Gate
    upstream: http.client.HTTPConnection | None = None

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        body = received(self)
        with self.gate.lock:
            self.gate.under_way += 1
        try:
            self._do(self.gate.judge(self._request()), body)
        finally:
            with self.gate.lock:
                self.gate.under_way -= 1

    def _request(self) -> Request:
        request = Request(f"{self.command} {unquote(self.path)}")
        is_conditional = any(name in self.headers for name in CONDITIONS) or "ifGenerationMatch=" in self.path
        request.has_condition = is_conditional and self.command in ("PUT", "POST")
        return request

    def _do(self, fate: object, body: bytes) -> None:
        if callable(fate):
            fate = fate()
        if fate in ("denied", "failed"):
            self._pass_on(body)
            fate = 403 if fate == "denied" else 503
        if fate == "held":
            self.gate.held.append(partial(self._arrive, body))
            fate, self.close_connection = 403, True  # another request would take the place of this one
        if isinstance(fate, int | tuple):
            status, text = fate if isinstance(fate, tuple) else (fate, "")
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(text.encode())
            return
        self.close_connection = fate in ("dropped", "lost", "late", "overtaken")
        if fate == "dropped":
            return
        if fate == "late":
            time.sleep(self.gate.late)
        if fate == "twice":
            self._pass_on(body)
        answer, content = self._pass_on(body)
        self.gate.follow(fate)
        if not self.close_connection:
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "content-length", "keep-alive"):
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    def _pass_on(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        for attempt in range(2):
            if self.upstream is None:
                at = self.gate.upstream
                self.upstream = http.client.HTTPConnection(at.hostname, at.port, timeout=60)
            try:
                self.upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in ("connection", "expect"):
                        self.upstream.putheader(name, value)
                self.upstream.endheaders(body or None)
                answer = self.upstream.getresponse()
                return answer, answer.read()
            except (http.client.RemoteDisconnected, ConnectionError):  # the server has closed an idle connection
                self.upstream.close()
                self.upstream = None
                if attempt:
                    raise
        raise AssertionError

    def _arrive(self, body: bytes) -> None:
        self._pass_on(body)
        self.upstream.close()

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()
        if self.upstream is not None:
            self.upstream.close()


@contextmanager
def gate_to(cloud: Cloud) -> Iterator[tuple[Gate, str]]:
    """Stand in front of a server; gives the gate and its URL."""
    gate = Gate(cloud.endpoint)
    server = Server(("127.0.0.1", 0), type("GateHandler", (_GateHandler,), {"gate": gate}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield gate, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
