"""moto's server of the S3 protocol, whose connections stay open; werkzeug's, which moto comes with, closes each one."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING
from urllib.parse import unquote

from servers import Server, received

if TYPE_CHECKING:
    from werkzeug.datastructures import Headers

ENVIRONMENT = {
    "SCRIPT_NAME": "",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "wsgi.version": (1, 0),
    "wsgi.url_scheme": "http",
    "wsgi.errors": sys.stderr,
    "wsgi.input_terminated": True,
    "wsgi.multithread": True,
    "wsgi.multiprocess": False,
    "wsgi.run_once": False,
}


class Handler(BaseHTTPRequestHandler):
    """Passes requests on to moto's application."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    answer: Callable[[dict[str, object]], tuple[Iterable[bytes], str, Headers]]
    turn = threading.Lock()

    def log_message(self, *_: object) -> None:
        pass

    def environment(self) -> dict[str, object]:
        """Describe the request as PEP 3333 says."""
        path, _, query = self.path.partition("?")
        host, port = self.server.server_address
        asked = {
            "REQUEST_METHOD": self.command,
            "PATH_INFO": unquote(path, "latin-1"),
            "QUERY_STRING": query,
            "REQUEST_URI": self.path,
            "RAW_URI": self.path,
            "SERVER_NAME": host,
            "SERVER_PORT": str(port),
            "REMOTE_ADDR": self.client_address[0],
            "wsgi.input": io.BytesIO(self.body()),
        }
        fields = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in self.headers.items()}
        for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            if f"HTTP_{name}" in fields:
                fields[name] = fields.pop(f"HTTP_{name}")
        return {**ENVIRONMENT, **asked, **fields}

    def body(self) -> bytes:
        """Read what comes with the request, in chunks of HTTP or as a whole."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return received(self)
        pieces = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            pieces.append(received(self, size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(pieces)

    def serve(self) -> None:
        asked = self.environment()
        # S3 compares and writes in one step. moto compares first and writes later, so that writers must take turns.
        with nullcontext() if self.command in ("GET", "HEAD") else self.turn:
            pieces, status, headers = self.answer(asked)
        content = b"".join(pieces)
        code, _, reason = status.partition(" ")
        self.send_response(int(code), reason)
        for name, value in headers:
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = serve


def main() -> None:
    """Print the port, and serve until the standard input ends."""
    from moto.moto_server.werkzeug_app import create_backend_app
    from werkzeug.test import run_wsgi_app

    Handler.answer = partial(run_wsgi_app, create_backend_app("s3"))
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
