"""What reading parts of an array from an object store takes: requests, bytes and time, beside python-blosc2 and zarr.

    python asv_bench/roundtrips.py [--quick] [--delay MILLISECONDS] [--codec NAME]

The same data, with the same chunks and blocks (zarr: shards and chunks), lie on a server of S3's protocol on the
loopback interface, which is moto in a process of its own. It delays every answer as a network would, and counts.
Each selection is read by a new process that has opened the array before and has read nothing of it. "stock" is the
file that python-blosc2 has written.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import s3fs

import b2array

SHAPE, CHUNKS, BLOCKS = (128, 256, 256), (32, 128, 128), (8, 32, 32)
QUICK = (32, 128, 256)
BUCKET = "bench"
CREDENTIALS = {"key": "loopback-access-key", "secret": "loopback-secret-key"}

SERVER = """
import json, sys, threading, time
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

delay, lock, counts = float(sys.argv[1]), threading.Lock(), {"requests": 0, "bytes": 0}
inner = DomainDispatcherApplication(create_backend_app)
whole = {}

def ranged(environ, start_response):
    # For a part of an object moto reads all of it, every time: such answers are made here.
    path = environ["PATH_INFO"]
    if path not in whole:
        told = []
        plain = {name: value for name, value in environ.items() if name != "HTTP_RANGE"}
        body = b"".join(inner(plain, lambda status, headers, *_: told.extend((status, headers))))
        if not told[0].startswith("200"):
            start_response(*told)
            return body
        left_out = "content-length", "x-amz-checksum"  # these are of the whole
        whole[path] = [pair for pair in told[1] if not pair[0].lower().startswith(left_out)], body
    headers, body = whole[path]
    first, _, last = environ["HTTP_RANGE"].removeprefix("bytes=").partition("-")
    start = int(first) if first else len(body) - int(last)
    part = body[start : int(last) + 1 if first and last else None]
    size = ("Content-Length", str(len(part))), ("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(body)}")
    start_response("206 PARTIAL CONTENT", [*headers, *size])
    return part

def counted(environ, start_response):
    if environ["PATH_INFO"] == "/counts":
        with lock:
            answer = json.dumps(counts).encode()
            counts.update(requests=0, bytes=0)
        start_response("200 OK", [("Content-Length", str(len(answer)))])
        return [answer]
    time.sleep(delay)
    if environ["REQUEST_METHOD"] == "GET" and "HTTP_RANGE" in environ:
        body = ranged(environ, start_response)
    else:
        body = b"".join(inner(environ, start_response))
    with lock:
        counts["requests"] += 1
        counts["bytes"] += len(body)
    return [body]

class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    def log(self, *_):
        pass

server = make_server("127.0.0.1", 0, counted, threaded=True, request_handler=Quiet)
print(server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""

READ = """
import json, sys, time, urllib.request
library, url, options, endpoint, key = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4], eval(sys.argv[5])

def counts():
    with urllib.request.urlopen(endpoint + "/counts") as answer:
        return json.load(answer)

def open_it():
    if library == "b2array":
        import b2array
        return b2array.open(url, storage_options=options)
    if library == "python-blosc2":
        import blosc2
        return blosc2.open(url, lazy=True, storage_options=options)
    import zarr
    return zarr.open_array(url, mode="r", storage_options=options)

# Modules and the connection are not what is measured.
import s3fs
s3fs.S3FileSystem(**options).info(url)
__import__({"python-blosc2": "blosc2"}.get(library, library))
counts()
start = time.perf_counter()
array = open_it()
opened = {**counts(), "seconds": time.perf_counter() - start}
start = time.perf_counter()
data = array[key]
seconds = time.perf_counter() - start
import numpy as np
print(json.dumps({"opened": opened, "read": {**counts(), "seconds": seconds}, "sum": float(np.sum(data))}))
"""


def selections(shape: tuple[int, ...]) -> dict[str, str]:
    """Return keys, as text."""
    z, y, x = (n // 2 for n in shape)
    return {
        "point": f"({z}, {y}, {x})",
        "row": f"({z}, {y})",
        "box": f"(slice({z - 9}, {z + 9}), slice({y - 20}, {y + 20}), slice({x - 20}, {x + 20}))",
        "slab": f"({z},)",
        "column": f"(slice(None), {y}, {x})",
        "strided": "(slice(3, None, 32), slice(5, None, 64), slice(7, None, 64))",
        "full": "(Ellipsis,)",
    }


@contextmanager
def server(delay: float) -> Iterator[str]:
    """Run the server; gives its URL."""
    command = [sys.executable, "-W", "ignore", "-c", SERVER, str(delay)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("expected pipes to the server")
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


def write(data: np.ndarray, codec: str, options: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Write the arrays; returns a library and a URL for each line of the tables."""
    fs = s3fs.S3FileSystem(**options)
    fs.call_s3("create_bucket", Bucket=BUCKET)
    cparams = {"codec": blosc2.Codec[codec.upper()], "clevel": 5}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "stock.b2nd"
        blosc2.asarray(data, urlpath=str(path), mode="w", chunks=CHUNKS, blocks=BLOCKS, cparams=cparams)
        fs.pipe_file(f"{BUCKET}/stock.b2nd", path.read_bytes())
    for layout in ("contiguous", "sparse"):
        b2array.asarray(
            data,
            url=f"s3://{BUCKET}/{layout}.b2nd",
            layout=layout,
            chunks=CHUNKS,
            blocks=BLOCKS,
            cparams=b2array.CParams(codec, 5),
            storage_options=options,
        )
    lines = {
        "b2array, one file": ("b2array", f"s3://{BUCKET}/contiguous.b2nd"),
        "b2array, sparse": ("b2array", f"s3://{BUCKET}/sparse.b2nd"),
        "b2array, stock": ("b2array", f"s3://{BUCKET}/stock.b2nd"),
        "python-blosc2, stock": ("python-blosc2", f"s3://{BUCKET}/stock.b2nd"),
    }
    import zarr

    compressor = zarr.codecs.BloscCodec(cname=codec, clevel=5, shuffle="shuffle", typesize=data.itemsize)
    made = zarr.create_array(
        f"s3://{BUCKET}/z.zarr",
        shape=data.shape,
        dtype=data.dtype,
        shards=CHUNKS,
        chunks=BLOCKS,
        compressors=compressor,
        storage_options=options,
    )
    made[...] = data
    return lines | {"zarr, shards": ("zarr", f"s3://{BUCKET}/z.zarr/zarr.json")}


def measure(library: str, url: str, key: str, options: dict[str, Any], expected: float) -> dict[str, Any]:
    """Open and read in a new process."""
    if library == "zarr":
        url = url.removesuffix("/zarr.json")
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        READ,
        library,
        url,
        json.dumps(options),
        options["endpoint_url"],
        key,
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        return {"failure": found.stderr.strip().rpartition("\n")[2]}
    result: dict[str, Any] = json.loads(found.stdout)
    return result if np.isclose(result["sum"], expected) else {"failure": "wrong values"}


def show(name: str, found: dict[str, Any]) -> None:
    """Print one line."""
    if "failure" in found:
        print(f"  {name:<22}{found['failure'][:90]}")
        return
    opened, read = found["opened"], found["read"]
    print(
        f"  {name:<22}{opened['requests']:>8}{opened['bytes'] / 1e3:>10.1f}{opened['seconds'] * 1e3:>9.0f}"
        f"{read['requests']:>10}{read['bytes'] / 1e3:>11.1f}{read['seconds'] * 1e3:>9.0f}"
    )


def main() -> None:
    """Write, read, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small array")
    parser.add_argument("--delay", type=float, default=20, help="milliseconds that every answer takes (default: 20)")
    parser.add_argument("--codec", default="zstd", choices=["zstd", "lz4", "zlib"], help="default: zstd")
    arguments = parser.parse_args()
    shape = QUICK if arguments.quick else SHAPE
    index = np.indices(shape, sparse=True)
    noise = np.random.default_rng(0).normal(0, 1e-3, shape)
    data = np.round(np.sin(index[0] / 9) + np.cos(index[1] / 17) * np.sin(index[2] / 23) + noise, 4)
    with server(arguments.delay / 1e3) as endpoint:
        options = {**CREDENTIALS, "endpoint_url": endpoint}
        lines = write(data, arguments.codec, options)
        urllib.request.urlopen(f"{endpoint}/counts").close()
        print(f"{data.nbytes / 1e6:.0f} MB, {arguments.codec}, {arguments.delay:g} ms a request")
        for name, key in selections(shape).items():
            expected = float(np.sum(data[eval(key)]))
            print(f"\n{name:<24}{'open: n':>8}{'kB':>10}{'ms':>9}{'read: n':>10}{'kB':>11}{'ms':>9}")
            for line, (library, url) in lines.items():
                show(line, measure(library, url, key, options, expected))


if __name__ == "__main__":
    main()
