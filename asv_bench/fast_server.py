"""Reads from a fast HTTP server on this computer: b2array beside zarr and tensorstore.

    python asv_bench/fast_server.py [--rounds N] [--only NAME ...] [--keep DIRECTORY]

nginx serves the files on the loopback interface; it must be installed. The array has 134 MB of f4, LZ4 and a byte
shuffle, in chunks of (64, 128, 128) and blocks of (16, 32, 32). Zarr and tensorstore read the same file of shards, and
one of plain chunks. Everything opens a new handle, which is not timed, and reads in turns. Nothing caches what it
has decoded. Times are medians: wall clock, and processor time of this process.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import tensorstore
import zarr
from timing import in_turns

import b2array

SHAPE, CHUNKS, BLOCKS = (128, 512, 512), (64, 128, 128), (16, 32, 32)
KEYS = {
    "all": np.s_[...],
    "slab": np.s_[40:44],
    "box": np.s_[40:70, 100:130, 200:230],
    "point": np.s_[70, 200, 300],
    "series": np.s_[:, 200, 300],
}
OFTEN = {"all": 1, "slab": 3, "box": 6, "point": 12, "series": 12}
"""How many times as many rounds a key gets."""

CONFIGURATION = """
daemon off; master_process on; worker_processes 2; pid {directory}/nginx.pid; error_log {directory}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log off; sendfile on; tcp_nodelay on; keepalive_requests 1000000;
    client_body_temp_path {directory}/a; proxy_temp_path {directory}/b; fastcgi_temp_path {directory}/c;
    uwsgi_temp_path {directory}/d; scgi_temp_path {directory}/e;
    server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""

Opener = Callable[[], Any]


@contextmanager
def nginx(root: Path) -> Iterator[str]:
    """Serve a directory; gives its URL."""
    command = shutil.which("nginx") or "/usr/sbin/nginx"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        settings = Path(directory) / "nginx.conf"
        settings.write_text(CONFIGURATION.format(directory=directory, port=port, root=root))
        server = subprocess.Popen([command, "-c", str(settings), "-e", f"{directory}/error.log"])
        try:
            for _ in range(100):
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


def write(root: Path) -> None:
    """Write the arrays."""
    z, y, x = np.indices(SHAPE, sparse=True)
    data = (np.sin(z / 9) + np.cos(y / 17) * np.sin(x / 23)).astype("f4")
    data += np.random.default_rng(0).normal(0, 1e-3, SHAPE).astype("f4")
    cparams = b2array.CParams("lz4", clevel=5, filters="shuffle")
    b2array.asarray(
        data, url=root / "a.b2nd", layout="contiguous", chunks=CHUNKS, blocks=BLOCKS, cparams=cparams, overwrite=True
    )
    blosc = zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")
    for name, options in {
        "chunks.zarr": {"chunks": CHUNKS},
        "shards.zarr": {"chunks": BLOCKS, "shards": CHUNKS},
    }.items():
        made = zarr.create_array(
            str(root / name), shape=SHAPE, dtype="f4", compressors=blosc, overwrite=True, **options
        )
        made[...] = data


def openers(endpoint: str) -> dict[str, Opener]:
    """Return functions that open the arrays."""
    url = f"{endpoint}/a.b2nd"
    from obstore.fsspec import FsspecStore

    plain = {"client_options": {"allow_http": True}}
    given = FsspecStore("http", **plain)

    def through_zarr(name: str) -> Opener:
        return lambda: zarr.open_array(
            zarr.storage.ObjectStore(obstore.store.HTTPStore(f"{endpoint}/{name}", **plain), read_only=True), mode="r"
        )

    def through_tensorstore(name: str) -> Opener:
        place = {"driver": "http", "base_url": endpoint, "path": f"/{name}/"}
        return lambda: tensorstore.open({"driver": "zarr3", "kvstore": place}, open=True, read=True).result()

    return {
        "b2array": lambda: b2array.open(url),
        "b2array, without obstore": lambda: b2array.open(url),
        "b2array, fs= obstore": lambda: b2array.open(url.removeprefix("http://"), fs=given),
        "zarr, chunks": through_zarr("chunks.zarr"),
        "zarr, shards": through_zarr("shards.zarr"),
        "tensorstore, chunks": through_tensorstore("chunks.zarr"),
        "tensorstore, shards": through_tensorstore("shards.zarr"),
    }


def reader(name: str, opened: Any, key: Any) -> Callable[[], Any]:
    """Return the function to time."""
    if name.startswith("tensorstore"):
        return lambda: opened[key].read().result()
    if name == "b2array, without obstore":
        return lambda: without_obstore(opened, key)
    return lambda: opened[key]


def without_obstore(opened: Any, key: Any) -> Any:
    """Read through fsspec's client."""
    with b2array.config.using(obstore=False):
        return opened[key]


def main() -> None:
    """Write, read, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of ways to read")
    parser.add_argument("--keys", nargs="+", choices=KEYS, default=list(KEYS))
    parser.add_argument("--keep", type=Path, help="where the files are, or will be")
    given = parser.parse_args()
    b2array.config.cache_bytes = 0
    with tempfile.TemporaryDirectory() as temporary:
        root = given.keep or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o755)
        if not (root / "shards.zarr").exists():
            write(root)
        with nginx(root) as endpoint:
            ways = {name: way for name, way in openers(endpoint).items() if not given.only or name in given.only}
            print(f"{'ms, wall / processor':<28}" + "".join(f"{key:>18}" for key in given.keys))
            lines = {name: f"{name:<28}" for name in ways}
            expected = b2array.open(root / "a.b2nd")
            for key in given.keys:
                index = KEYS[key]
                for name, way in ways.items():
                    if not np.array_equal(reader(name, way(), index)(), expected[index]):
                        raise RuntimeError(f"{name} reads wrong values")
                verbs = {
                    name: lambda _, name=name, way=way: reader(name, way(), index)  # noqa: B023
                    for name, way in ways.items()
                }
                for name, (wall, cpu) in in_turns(verbs, given.rounds * OFTEN[key]).items():
                    lines[name] += f"{wall * 1e3:>9.2f} /{cpu * 1e3:>7.2f}"
            print(*lines.values(), sep="\n")


if __name__ == "__main__":
    main()
