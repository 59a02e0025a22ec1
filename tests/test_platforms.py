"""Windows and macOS, as far as Linux can show them: no module needs at import what they lack, and files are written.

The functions and constants that a system lacks are taken away, `sys.platform` is its name, and the package is imported
again. What the system itself does with locks, names and open files is not tested so.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PROGRAM = """
import importlib, os, pkgutil, stat, sys, types
import numpy as np

platform, lost_modules, lost_names = sys.argv[1], sys.argv[2].split(), sys.argv[3].split()

def everything():
    import b2array
    for module in pkgutil.walk_packages(b2array.__path__, "b2array."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return b2array

# The libraries are imported on the system that is there.
everything()
for name in [name for name in sys.modules if name.partition(".")[0] == "b2array"]:
    del sys.modules[name]
for name in lost_modules:
    sys.modules[name] = None
for name in lost_names:
    if hasattr(os, name):
        delattr(os, name)
os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks = set(), set(), set()
# The statuses of Windows have more attributes.
class Status:
    st_reparse_tag = st_file_attributes = 0

    def __init__(self, found):
        self.found = found

    def __getattr__(self, name):
        return getattr(self.found, name)

def of_windows(ask):
    return lambda *args, **options: Status(ask(*args, **options))

if platform == "win32":
    os.O_BINARY, stat.IO_REPARSE_TAG_MOUNT_POINT = 0, 0xA0000003
    os.stat, os.lstat, os.fstat = map(of_windows, (os.stat, os.lstat, os.fstat))
    sys.modules["msvcrt"] = types.SimpleNamespace(LK_LOCK=1, LK_UNLCK=0, LK_NBLCK=2, locking=lambda *_: None)
sys.platform = platform

b2array = everything()
x = np.arange(600).reshape(20, 30)
for options in ({"url": "a.b2nd"}, {"url": "sparse.b2nd", "layout": "sparse"}):
    b2array.asarray(x, chunks=(7, 8), **options)
    with b2array.open(options["url"], mode="r+") as a:
        a[3:5] = -1
        a.append(x[:2])
        a.attrs["unit"] = "K"
    assert (b2array.open(options["url"])[3:5] == -1).all()
    assert b2array.verify(options["url"]).ok
group = b2array.open_group("g.b2d", mode="w")
with group.transaction():
    group["air/t"] = x
    group["air/u"] = x + 1
assert (b2array.open("g.b2d/air/u")[...] == x + 1).all()
del group["air/t"]
assert "air/t" not in b2array.open_group("g.b2d")
b2array.vacuum("g.b2d")
print("done")
"""

SYSTEMS = {
    "win32": (
        "fcntl grp posix pwd pty resource termios tty",
        "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC chown fchmod fchown fdatasync fork fstatvfs getegid "
        "geteuid getgid getuid mkfifo posix_fadvise posix_fallocate pread preadv pwrite pwritev readv register_at_fork "
        "sched_getaffinity sched_yield sendfile statvfs sync writev",
    ),
    "darwin": (
        "",
        "O_DIRECT O_TMPFILE copy_file_range fdatasync memfd_create posix_fadvise preadv pwritev sched_getaffinity",
    ),
}
"""What is taken away from each system: modules, and names of `os`."""


@pytest.mark.parametrize(
    "platform", ["win32", *(pytest.param(each, marks=pytest.mark.slow) for each in SYSTEMS if each != "win32")]
)
def test_the_package_is_imported_and_writes_files_without_what_a_system_lacks(platform: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, platform, *SYSTEMS[platform]]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.stdout == "done\n", done.stderr
