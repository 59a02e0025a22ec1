"""Programs that end while something is open: they end soon, with their own status, and write nothing afterwards."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import b2array

OPEN = """
import sys, threading, time
from contextlib import ExitStack
import numpy as np
import b2array
url, layout = sys.argv[1:]
a = b2array.zeros((8, 4), url=url, chunks=(2, 4), layout=layout, overwrite=True)
g = b2array.open_group(url + ".b2d", "w")
g["x"] = np.zeros((8, 4))
"""


def run(program: str, *arguments: object, status: int = 0) -> str:
    """Run a program that must end within a minute, with this status; return what it wrote to the error output."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    return done.stderr


LEFT_OPEN = {
    "a generator": """
def steps():
    with a.transaction() as changes:
        fork = changes.fork()
        fork[0] = 1
        yield fork
work = steps()
next(work)
""",
    "an ExitStack": """
stack = ExitStack()
changes = stack.enter_context(a.transaction())
fork = changes.fork()
fork[0] = 1
""",
    "a transaction of a group": """
def steps():
    with g.transaction() as changes:
        fork = changes.fork()
        fork["x"][0] = 1
        yield fork
work = steps()
next(work)
""",
    "a transaction beside a thread that writes in it": """
def steps():
    with a.transaction() as changes:
        threading.Thread(target=write, args=(changes,), daemon=True).start()
        began.wait()
        yield changes
class Slow:
    def __array__(self, *args, **kwargs):
        began.set()
        time.sleep(1000)
def write(changes):
    for attempt in a._handle.attempts():
        with a._handle.mutex.held:
            np.asarray(Slow())
began = threading.Event()
work = steps()
next(work)
""",
    "a generator of threads.ahead": """
from b2array.threads import ahead
work = ahead(lambda n: n and time.sleep(1000), range(9), 4)
next(work)
""",
    "a generator of threads.spread": """
from b2array.threads import spread
b2array.config.threads = 2
work = spread(lambda n: n and time.sleep(1000), range(9))
next(work)
""",
}


@pytest.mark.parametrize("layout", ["sparse", "contiguous"])
@pytest.mark.parametrize(
    "left_open", [each if n % 2 else pytest.param(each, marks=pytest.mark.slow) for n, each in enumerate(LEFT_OPEN)]
)
def test_a_program_ends_while_something_is_open(tmp_path: Path, left_open: str, layout: str) -> None:
    url = tmp_path / "a.b2nd"
    assert run(OPEN + LEFT_OPEN[left_open], url, layout) == ""
    assert not b2array.open(url)[...].any()
    assert not b2array.open_group(f"{url}.b2d")["x"][...].any()


def test_a_program_ends_with_its_own_status_while_a_transaction_is_open(tmp_path: Path) -> None:
    run(OPEN + LEFT_OPEN["a generator"] + "sys.exit(3)", tmp_path / "a.b2nd", "sparse", status=3)


def test_what_a_program_left_open_can_be_removed(tmp_path: Path) -> None:
    url = tmp_path / "a.b2nd"
    run(OPEN + LEFT_OPEN["a generator"], url, "sparse")
    before = {path.name for path in url.iterdir()}
    removed = {*b2array.vacuum(url, grace=0).removed}
    assert removed
    assert {path.name for path in url.iterdir()} - {".b2lock"} == before - removed
    assert not b2array.vacuum(url, grace=0).removed


LATE = """
class Late:
    def __init__(self, name, call):
        self.name, self.call = name, call
    def __del__(self):
        try:
            self.call()
        except RuntimeError as error:
            sys.stderr.write(f"{self.name}: {error}\\n")
        else:
            sys.stderr.write(f"{self.name}: done\\n")

def changing(handle, change):
    block = handle.transaction()
    change(block.__enter__())
    return lambda: block.__exit__(None, None, None)

m, warm = g["x"], np.ones((1, 4))
late = [
    Late("an item", lambda: m[0, 0]),
    Late("a part", lambda: m[2:]),
    Late("a mean", lambda: a.mean()),
    Late("an assignment", lambda: a.__setitem__(..., 1)),
    Late("an assignment to a member", lambda: m.__setitem__(..., 1)),
    Late("an attribute", lambda: a.attrs.__setitem__("x", 1)),
    Late("steps", lambda: a.append(warm)),
    Late("the end of a transaction", changing(b2array.open(url, "r+"), lambda changes: changes.__setitem__(0, 1))),
    Late("the end of a transaction of a group", changing(g, lambda changes: changes["x"].__setitem__(0, 1))),
    Late("a new array", lambda: b2array.zeros(3, url=url, overwrite=True)),
    Late("a new member", lambda: g.create("y", data=warm)),
    Late("a deletion", lambda: g.__delitem__("x")),
]
"""


@pytest.mark.costly
@pytest.mark.parametrize("layout", ["sparse", "contiguous"])
def test_a_finalizer_after_the_end_reads_and_writes_nothing(tmp_path: Path, layout: str) -> None:
    url = tmp_path / "a.b2nd"
    said = run(OPEN + LATE, url, layout).splitlines()
    assert len(said) == 12, said
    assert [
        line for line in said if ": the interpreter is ending, so b2array reads and writes nothing" not in line
    ] == []
    array, group = b2array.open(url), b2array.open_group(f"{url}.b2d")
    assert (array.shape, dict(array.attrs), [*group], group["x"].shape) == ((8, 4), {}, ["x"], (8, 4))
    assert not array[...].any()
    assert not group["x"][...].any()


def test_a_function_that_atexit_calls_can_still_write(tmp_path: Path) -> None:
    url = tmp_path / "a.b2nd"
    late = "import atexit\natexit.register(lambda: [a.__setitem__(0, 1), g['x'].append(np.ones((1, 4)))])"
    assert run(OPEN + late, url, "sparse") == ""
    np.testing.assert_array_equal(b2array.open(url)[...].sum(), 4)
    assert b2array.open_group(f"{url}.b2d")["x"].shape == (9, 4)


OBSTORE = """
import asyncio, sys, threading, time
import b2array.store.obstore
original = asyncio.BaseEventLoop.call_soon_threadsafe
slow = []

def call(self, *args, **kwargs):
    handle = original(self, *args, **kwargs)
    if threading.get_ident() not in {thread.ident for thread in threading.enumerate()}:
        slow.append(None)
        time.sleep(0.3)  # the program goes on with the answer, and ends
    return handle

asyncio.BaseEventLoop.call_soon_threadsafe = call
from obstore.fsspec import FsspecStore
fs = FsspecStore("memory")
fs.pipe_file("bucket/a", b"x" * 1000)
assert len(fs.cat_file("bucket/a")) == 1000
assert slow
"""


def test_a_program_waits_for_threads_of_obstore_before_it_ends() -> None:
    pytest.importorskip("obstore")
    assert run(OBSTORE) == ""
