"""Lists the members of a local group by its files.

As for python-blosc2, the files in the directory are the list of members. For a member with a pending step, the step
decides: the files depend on the progress of the writer that takes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import nullcontext, suppress
from itertools import accumulate

from b2array import config
from b2array.catalog.census import embedded_extents
from b2array.catalog.known_manifests import read_manifest
from b2array.catalog.manifest import (
    EMBEDDED,
    MANIFEST,
    SUFFIXES,
    Manifest,
    is_embedded,
    members_among,
    mounts_among,
    own_files,
    refuse_other_names,
)
from b2array.catalog.names_of_members import Members
from b2array.catalog.redo import Action, action_of, inspect_place, load_local_member
from b2array.errors import UnsupportedError, prefix_error
from b2array.frame.source import FRAME_NAME
from b2array.store.base import MISSING, Store, Version

__all__ = ["embedded_paths", "find_paths", "list_group", "list_members", "list_near"]


def list_group(group: Store, manifest: Manifest | None = None) -> tuple[Manifest, Members]:
    """List a group, and return its manifest and its members, both from one moment.

    If a commit happens in between, this starts again; the last attempt takes the shared lock of the manifest, and so
    locks out writers. A caller that has just read the `manifest` passes it.
    """
    if manifest is None:
        manifest, _ = read_manifest(group)
    if manifest.members is not None:
        return manifest, Members(manifest.members)
    for attempt in range(config.retries + 1):
        last = attempt == config.retries
        with group.lock(MANIFEST, shared=True) if last else nullcontext():
            before = manifest
            members = list_members(group, manifest)
            manifest, _ = read_manifest(group)
            if manifest == before:
                return manifest, members
    return manifest, list_members(group, manifest)


def list_members(group: Store, manifest: Manifest) -> Members:
    """List the members of a group and of the groups inside it, as they are after the pending steps in a manifest.

    UnsupportedError: a member has a name that it cannot have here.
    """
    return _members_among(group, group.walk(), manifest)


def _members_among(group: Store, files: Collection[str], manifest: Manifest) -> Members:
    """Find the members among the files of a group, in its embedding frame, in its pending steps, and in inner groups.

    This reads the embedding frame and the members that have pending steps, and lists the inner groups.
    UnsupportedError: a member has a name that it cannot have here.
    """
    paths = members_among(own_files(files))
    listed = {*paths.values()}
    others = [path for path in files if path.removesuffix(f"/{FRAME_NAME}") not in listed]
    try:
        refuse_other_names(others)
    except UnsupportedError as error:
        raise prefix_error(group.url, error) from None
    for name in mounts_among(files):
        paths |= _members_of_mount(group, name)
    for path, step in manifest.pending.items():
        if path == EMBEDDED:
            continue
        name = path.rpartition(".")[0]
        here, action = action_of(step, group.below, path)
        if action in (Action.WRITE, Action.PUT):
            paths[name] = path
        elif paths.get(name) == path and (action is Action.TAKE_OUT or here.name is None):
            del paths[name]
        elif here.name is not None and name not in paths:
            paths[name] = path
    inner = embedded_paths(group, manifest) if EMBEDDED in files else {}
    return Members({**inner, **paths})


def _members_of_mount(group: Store, name: str) -> dict[str, str]:
    """List an inner group; return the paths of its members by their names, both relative to the outer group.

    The result does not include embedded members.
    """
    _, inner = list_group(group.below(name))
    return {f"{name}/{each}": f"{name}/{path}" for each, path in inner.items() if not is_embedded(path)}


def embedded_paths(group: Store, manifest: Manifest) -> Mapping[str, str]:
    """Read the embedding frame, and return a path for each member in it, by its name; nothing without such a frame.

    This process remembers the result, and reads the frame again only if it has changed.
    """
    try:
        key = group.url, group.stamp(EMBEDDED).version
    except MISSING:
        return {}
    if EMBEDDED in manifest.pending or key[1] is None:
        return _read_embedded(group, manifest)
    embedded = _known.get(key)
    if embedded is None:
        embedded = _known[key] = _read_embedded(group, manifest)
        while len(_known) > _MOST:
            _known.pop(next(iter(_known)), None)
    return embedded


def _read_embedded(group: Store, manifest: Manifest) -> dict[str, str]:
    """Read the embedding frame, and return a path for each member in it."""
    frame = load_local_member(group, manifest, EMBEDDED)
    return {name: f"{EMBEDDED}/{name}" for name in embedded_extents(frame.state, frame.url)}


_known: dict[tuple[str, Version | None], Mapping[str, str]] = {}
"""The members in embedding frames that this process has read, by the state of the file."""
_MOST = 64


def find_paths(group: Store, names: Collection[str], manifest: Manifest) -> dict[str, str]:
    """Find all paths of members with these names, as they are after the pending steps; return names by paths.

    One name may have several paths: a writer that does not know the group may have made a second file. This reads the
    place of each possible path.
    """
    names_by_path = {}
    for name in names:
        for suffix in SUFFIXES:
            path = f"{name}{suffix}"
            if _has_frame(group, path, manifest):
                names_by_path[path] = name
    inner = embedded_paths(group, manifest)
    return names_by_path | {inner[name]: name for name in inner.keys() & set(names)}


def _has_frame(group: Store, path: str, manifest: Manifest) -> bool:
    """Read the place of a path; return whether a frame is there that no pending step deletes."""
    step = manifest.pending.get(path)
    if step is None:
        return inspect_place(group.below(path)).name is not None
    here, action = action_of(step, group.below, path)
    return here.name is not None and action is not Action.TAKE_OUT


def list_near(group: Store, names: Collection[str], manifest: Manifest) -> Members:
    """List the members that have some names, or that are around or below them: they decide whether the names are free.

    This looks only for these members, because it takes long to list all members of a large group.
    """
    outer = {each for name in names for each in accumulate(name.split("/")[:-1], "{}/{}".format)}
    paths = find_paths(group, {*outer, *names}, manifest)
    near = Members({name: path for path, name in paths.items()})
    for name in names:
        # Usually no directory has the name of a new member.
        with suppress(*MISSING):
            files = [f"{name}/{file}" for file in group.below(name).walk()]
            for other, path in _members_among(group, files, Manifest()).items():
                near.add(other, path)
    return near
