"""A group whose folder rsync, tar or cp brings back with its old times, beside open handles: old values or errors."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import b2array
from b2array.errors import B2ArrayError

Contents = dict[str, list[int]]

NAMES = "abcdef"
STEPS = 30


def _over_the_name(source: Path, target: Path) -> None:
    """Write a new file, and give it the name, as rsync does."""
    copy = target.with_name(".copy")
    shutil.copy2(source, copy)
    copy.replace(target)


def _after_removal(source: Path, target: Path) -> None:
    """Remove the file before, as tar does; the new one may get its number."""
    target.unlink(missing_ok=True)
    shutil.copy2(source, target)


def _in_place(source: Path, target: Path) -> None:
    """Write over the content, as cp does."""
    shutil.copy2(source, target)


def bring_back(saved: Path, folder: Path, copy: Callable[[Path, Path], None]) -> None:
    """Make a folder what it was, with the times of the files, and remove what it has got since."""
    for path in sorted(folder.rglob("*"), reverse=True):
        twin = saved / path.relative_to(folder)
        if path.is_dir() and not twin.is_dir():
            shutil.rmtree(path)
        elif path.is_file() and not twin.is_file():
            path.unlink()
    for path in sorted(saved.rglob("*")):
        twin = folder / path.relative_to(saved)
        if path.is_dir():
            twin.mkdir(exist_ok=True)
        else:
            copy(path, twin)


def contents(group: b2array.Group) -> Contents:
    return {name: array[...].tolist() for name, array in group.arrays().items()}


class Story:
    """Random changes of a group, and what it should have after each."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.expected: Contents = {}
        self.group = b2array.open_group(path, "w")

    def change(self) -> None:
        """Change the group; ConflictError or KeyError of a handle from before the folder came back changes nothing."""
        after = {name: [*items] for name, items in self.expected.items()}
        verbs = [self.make]
        if len(after) > 1:
            verbs += [self.write, self.write_together, self.append, self.delete, self.keep, self.write_by_url]
        self.random.choice(verbs)(after)
        self.expected = after

    def make(self, after: Contents) -> None:
        name, layout = self.random.choice(NAMES), self.random.choice(["contiguous", "sparse"])
        after[name] = [self.random.randrange(1000) for _ in range(self.random.choice([4, 12]))]
        self.group.create(name, data=after[name], chunks=(4,), blocks=(2,), layout=layout, overwrite=True)

    def write(self, after: Contents) -> None:
        name = self.random.choice(sorted(after))
        where, value = self.random.randrange(len(after[name])), self.random.randrange(1000)
        after[name][where] = self.group[name][where] = value

    def write_together(self, after: Contents) -> None:
        with self.group.transaction() as changes:
            for name in self.random.sample(sorted(after), 2):
                after[name][0] = changes[name][0] = self.random.randrange(1000)

    def append(self, after: Contents) -> None:
        name = self.random.choice(sorted(after))
        after[name].append(self.random.randrange(1000))
        self.group[name].append(after[name][-1:])

    def delete(self, after: Contents) -> None:
        name = self.random.choice(sorted(after))
        del after[name], self.group[name]

    def keep(self, after: Contents) -> None:
        self.group.snapshot(f"{self.random.randrange(2**40)}")

    def write_by_url(self, after: Contents) -> None:
        name = self.random.choice(sorted(after))
        after[name][-1] = self.random.randrange(1000)
        b2array.open(self.path / f"{name}.b2nd", "r+")[-1] = after[name][-1]

    def require(self, group: b2array.Group | None = None) -> None:
        """Compare with what a new handle finds, or the given one."""
        assert contents(group or b2array.open_group(self.path)) == self.expected


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 15))])
@pytest.mark.parametrize("copy", [_over_the_name, _after_removal, _in_place])
def test_a_folder_that_is_brought_back_has_its_old_values_for_all_handles(
    tmp_path: Path, copy: Callable[[Path, Path], None], seed: int
) -> None:
    story = Story(tmp_path / "group.b2d", seed)
    saved, were = tmp_path / "saved", Contents()
    held: list[b2array.Group] = []
    refusals = 0
    for step in range(STEPS):
        if step % 10 == 0:
            shutil.rmtree(saved, ignore_errors=True)
            shutil.copytree(story.path, saved)
            were = story.expected
            held = [b2array.open_group(story.path, mode) for mode in ("r", "r+")]
        if step % 10 == 5:
            read = [array for group in held for array in group.arrays().values()]
            allowed = [*story.expected.values(), *were.values()]
            for array in read:
                assert array[...].tolist() in allowed
            bring_back(saved, story.path, copy)
            story.expected = were
            for array in read:
                with suppress(B2ArrayError, OSError):
                    assert array[...].tolist() in allowed
            for group in held:
                with suppress(B2ArrayError):  # another group is there
                    group.refresh()
                    story.require(group)
        try:
            story.change()
        except (B2ArrayError, KeyError):
            refusals += 1
            story.require()
            story.group = b2array.open_group(story.path, "r+")
            story.change()
        story.require()
    assert refusals < STEPS // 5
    assert b2array.verify(story.path)
