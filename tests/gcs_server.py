"""A server of objects in memory with the parts of Google Cloud Storage's two protocols that clients of b2array speak.

Those are gcsfs (JSON) and obstore (XML). It honours ``ifGenerationMatch``, and compares and writes in one step. None of
the emulators on PyPI does.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from servers import Server, received

GRAIN = 256 * 1024
"""Parts of an upload must be multiples of this size, except for the last one."""


class Refused(Exception):
    """An answer with an error."""

    def __init__(self, status: int, message: str) -> None:
        self.status, self.message = status, message


@dataclass
class Blob:
    content: bytes
    generation: int
    updated: str

    def described(self, bucket: str, name: str) -> dict[str, str]:
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": name,
            "size": str(len(self.content)),
            "generation": str(self.generation),
            "metageneration": "1",
            "md5Hash": base64.b64encode(hashlib.md5(self.content).digest()).decode(),
            "timeCreated": self.updated,
            "updated": self.updated,
        }


@dataclass
class Session:
    """An upload in parts."""

    bucket: str
    name: str
    condition: str | None
    content: bytearray = field(default_factory=bytearray)
    made: dict[str, str] | None = None
    parts: dict[int, bytes] = field(default_factory=dict)


UNLISTED = "unlisted-"
"""How the names of buckets begin in which nobody has the right to list."""


class Buckets:
    """What the server holds."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.buckets: dict[str, dict[str, Blob]] = {}
        self.sessions: dict[str, Session] = {}
        self.clock = itertools.count(1_700_000_000_000_000)

    def bucket(self, name: str) -> dict[str, Blob]:
        if name not in self.buckets:
            raise Refused(404, "The specified bucket does not exist.")
        return self.buckets[name]

    def blob(self, bucket: str, name: str, condition: str | None) -> Blob:
        blob = self.bucket(bucket).get(name)
        if blob is None and bucket.startswith(UNLISTED):
            # Google Cloud Storage says no more to users who may not list.
            raise Refused(403, f"The caller does not have storage.objects.list access to {bucket}.")
        if blob is None:
            raise Refused(404, f"No such object: {bucket}/{name}")
        if condition not in (None, str(blob.generation)):
            raise Refused(412, "At least one of the pre-conditions you specified did not hold.")
        return blob

    def check(self, bucket: str, name: str, condition: str | None) -> None:
        blob = self.bucket(bucket).get(name)
        if condition not in (None, str(blob.generation if blob else 0)):
            raise Refused(412, "At least one of the pre-conditions you specified did not hold.")

    def write(self, bucket: str, name: str, content: bytes, condition: str | None) -> dict[str, str]:
        self.check(bucket, name, condition)
        blob = Blob(content, next(self.clock), f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}")
        self.bucket(bucket)[name] = blob
        return blob.described(bucket, name)

    def listed(self, bucket: str, prefix: str, delimiter: str | None) -> dict[str, object]:
        items, prefixes = [], set()
        if bucket.startswith(UNLISTED):
            raise Refused(403, f"The caller does not have storage.objects.list access to {bucket}.")
        for name, blob in sorted(self.bucket(bucket).items()):
            if name.startswith(prefix):
                head, found, _ = name[len(prefix) :].partition(delimiter or "\0")
                if found:
                    prefixes.add(prefix + head + found)
                else:
                    items.append(blob.described(bucket, name))
        return {"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes)}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    held: Buckets

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        body = received(self)
        address = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(address.query).items()}
        try:
            with self.held.lock:
                status, headers, content = self._answer(address.path, asked, body)
        except Refused as refused:
            error = {"error": {"code": refused.status, "message": refused.message}}
            status, headers, content = refused.status, {}, json.dumps(error).encode()
        if isinstance(content, dict):
            headers = {"Content-Type": "application/json", **headers}
            content = json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    def _answer(self, path: str, asked: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes | dict]:
        if path == "/storage/v1/b" and self.command == "POST":
            name = json.loads(body)["name"]
            if name in self.held.buckets:
                raise Refused(409, f"The bucket {name} is there already.")
            self.held.buckets[name] = {}
            return 200, {}, {"name": name}
        found = re.fullmatch(r"(/upload|/download)?/storage/v1/b/([^/]+)(?:/o(?:/([^/]+))?)?", path)
        if found is None and not path.startswith(("/storage/", "/upload/", "/download/")):
            bucket, _, name = path.lstrip("/").partition("/")
            return self._xml(unquote(bucket), unquote(name), asked, body)
        if found is None:
            raise Refused(400, f"expected a request that this server knows, found {self.command} {path}")
        bucket, name = found[2], unquote(found[3] or "")
        condition = asked.get("ifGenerationMatch")
        if found[1] == "/upload":
            return self._upload(bucket, asked, body)
        if name and self.command == "DELETE":
            self.held.blob(bucket, name, condition)
            del self.held.bucket(bucket)[name]
            return 204, {}, b""
        if name:
            blob = self.held.blob(bucket, name, condition)
            return self._media(blob) if asked.get("alt") == "media" else (200, {}, blob.described(bucket, name))
        if not path.endswith("/o"):
            self.held.bucket(bucket)
            return 200, {}, {"name": bucket}
        return 200, {}, self.held.listed(bucket, asked.get("prefix", ""), asked.get("delimiter"))

    # The XML protocol, whose conditions are headers.

    def _xml(self, bucket: str, name: str, asked: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        condition = self.headers.get("x-goog-if-generation-match")
        if not name:
            return 200, {"Content-Type": "application/xml"}, self._xml_listing(bucket, asked)
        if "uploads" in parse_qs(urlsplit(self.path).query, keep_blank_values=True):
            ident = str(len(self.held.sessions))
            self.held.sessions[ident] = Session(bucket, name, condition)
            text = f"<InitiateMultipartUploadResult><UploadId>{ident}</UploadId></InitiateMultipartUploadResult>"
            return 200, {}, text.encode()
        if "uploadId" in asked:
            return self._xml_part(asked, body)
        if self.command == "PUT":
            self.held.write(bucket, name, body, condition)
        blob = self.held.blob(bucket, name, None)
        if self.command == "DELETE":
            del self.held.bucket(bucket)[name]
            return 204, {}, b""
        written = datetime.fromisoformat(blob.updated)
        about = {
            "ETag": f'"{blob.generation}"',
            "Last-Modified": f"{written:%a, %d %b %Y %H:%M:%S} GMT",
            "x-goog-generation": str(blob.generation),
        }
        if self.command != "GET":
            return 200, about, blob.content if self.command == "HEAD" else b""
        status, headers, content = self._media(blob)
        return status, {**headers, **about}, content

    def _xml_part(self, asked: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        session = self.held.sessions[asked["uploadId"]]
        if self.command == "DELETE":
            return 204, {}, b""
        if self.command == "PUT":
            session.parts[int(asked["partNumber"])] = body
            return 200, {"ETag": f'"{len(session.parts)}"'}, b""
        content = b"".join(part for _, part in sorted(session.parts.items()))
        made = self.held.write(session.bucket, session.name, content, session.condition)
        text = f"<CompleteMultipartUploadResult><ETag>{made['generation']}</ETag></CompleteMultipartUploadResult>"
        return 200, {"x-goog-generation": made["generation"]}, text.encode()

    def _xml_listing(self, bucket: str, asked: dict[str, str]) -> bytes:
        found = self.held.listed(bucket, asked.get("prefix", ""), asked.get("delimiter"))
        items = [
            f"<Contents><Key>{escape(item['name'])}</Key><Size>{item['size']}</Size>"
            f"<LastModified>{item['updated']}</LastModified><ETag>{item['generation']}</ETag></Contents>"
            for item in found["items"]
        ]
        inner = [f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>" for prefix in found["prefixes"]]
        return f"<ListBucketResult>{''.join(items + inner)}</ListBucketResult>".encode()

    def _media(self, blob: Blob) -> tuple[int, dict[str, str], bytes]:
        size, headers = len(blob.content), {"X-Goog-Generation": str(blob.generation)}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return 200, headers, blob.content
        start, stop = int(wanted[1] or max(0, size - int(wanted[2]))), size
        if wanted[1] and wanted[2]:
            stop = min(int(wanted[2]) + 1, size)
        if start >= size:
            raise Refused(416, "The requested range cannot be satisfied.")
        return 206, {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{size}"}, blob.content[start:stop]

    def _upload(self, bucket: str, asked: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes | dict]:
        condition, ident = asked.get("ifGenerationMatch"), asked.get("upload_id")
        if ident is not None:
            return self._continue(ident, body)
        if asked["uploadType"] == "resumable":
            name = asked.get("name") or json.loads(body)["name"]
            self.held.check(bucket, name, condition)
            ident = str(len(self.held.sessions))
            self.held.sessions[ident] = Session(bucket, name, condition)
            suffix = "" if condition is None else f"&ifGenerationMatch={condition}"
            place = f"http://{self.headers['Host']}/upload/storage/v1/b/{bucket}/o"
            return 200, {"Location": f"{place}?uploadType=resumable&upload_id={ident}{suffix}"}, b""
        name = asked.get("name", "")
        if asked["uploadType"] == "multipart":
            border = b"\n--" + re.search('boundary="?([^";]+)', self.headers["Content-Type"])[1].encode()
            described, rest = body.partition(b"\n\n")[2].split(border, 1)
            name, body = json.loads(described)["name"], rest.partition(b"\n\n")[2].rpartition(border)[0]
        return 200, {}, self.held.write(bucket, name, body, condition)

    def _continue(self, ident: str, body: bytes) -> tuple[int, dict[str, str], bytes | dict]:
        session = self.held.sessions.get(ident)
        if session is None:
            raise Refused(404, "No such upload.")
        if self.command == "DELETE":
            del self.held.sessions[ident]
            return 499, {}, b""
        if session.made is not None:
            return 200, {}, session.made
        what = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", self.headers["Content-Range"])
        start, total = int(what[1]), what[3]
        if total == "*" and len(body) % GRAIN:
            raise Refused(400, f"expected a multiple of {GRAIN} bytes, found {len(body)}")
        if start <= len(session.content):  # what has arrived is ignored
            session.content += body[len(session.content) - start :]
        if total == str(len(session.content)):
            content = bytes(session.content)
            session.made = self.held.write(session.bucket, session.name, content, session.condition)
            return 200, {}, session.made
        return 308, {"Range": f"bytes=0-{len(session.content) - 1}"} if session.content else {}, b""


@contextmanager
def gcs_server() -> Iterator[dict[str, object]]:
    """Run the server in a thread; gives storage options for it."""
    server = Server(("127.0.0.1", 0), type("GcsHandler", (Handler,), {"held": Buckets()}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield {"token": "anon", "project": "loopback", "endpoint_url": f"http://127.0.0.1:{server.server_address[1]}"}
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
