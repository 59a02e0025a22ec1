"""Writes datasets, trees and single arrays as groups of arrays, each in one commit."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack, cast
from uuid import uuid4

import xarray as xr

from b2array import config
from b2array.array import dask, dask_chunks
from b2array.array.array import NDArray
from b2array.array.dask import Write
from b2array.array.drafts import VariableKeywords, takes
from b2array.array.frozen import Shared
from b2array.commit.changes import ChangeSet
from b2array.commit.draft import Draft
from b2array.commit.fork_point import ForkPoint
from b2array.commit.forks import (
    accept_forks,
    make_fork_point,
    merge_changes,
    note_forks,
    remove_journal,
    was_committed,
)
from b2array.errors import ConflictError, make_ended_error, warn
from b2array.format.state import State
from b2array.group import group, whole
from b2array.group.group import Group
from b2array.group.homes import GroupHome
from b2array.group.unpacked import Unpacked, is_changeable_archive
from b2array.store.base import pause
from b2array.store.open import address_of
from b2array.xarray_io.backend import Url
from b2array.xarray_io.creating import create
from b2array.xarray_io.encoding import attributes, encode, is_dask, mark
from b2array.xarray_io.indexes import CheckIndex
from b2array.xarray_io.tasks import Mode, Node, WritePart, WriteTask
from b2array.xarray_io.variable_changes import change, group_at

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from fsspec import AbstractFileSystem

__all__ = ["KEYWORDS", "Mode", "WriteKeywords", "to_b2array"]

_NAMELESS = "__xarray_dataarray_variable__"
_NAMED = "__xarray_dataarray_name__"
"""The names under which xarray stores a single array, and finds it again."""

_WORTH_A_WARNING = 2**20
_PATIENCE = 20
"""The number of attempts for each of `config.retries`: a writer notices only at the end that another one was first."""


class WriteKeywords(VariableKeywords, total=False):
    """The keywords of `to_b2array`."""

    mode: Mode | None
    group: str | None
    append_dim: Hashable | None
    region: Mapping[Hashable, slice | Literal["auto"]] | Literal["auto"] | None
    check_index: CheckIndex
    encoding: Mapping[Hashable, Any] | None
    snapshot: str | None
    write_inherited_coords: bool
    compute: bool
    progress: bool
    scheduler: Any
    storage_options: Mapping[str, Any] | None
    fs: AbstractFileSystem | None


@takes(VariableKeywords)
def to_b2array(
    ds: xr.Dataset | xr.DataArray | xr.DataTree,
    url: Url,
    *,
    mode: Mode | None = None,
    group: str | None = None,
    append_dim: Hashable | None = None,
    region: Mapping[Hashable, slice | Literal["auto"]] | Literal["auto"] | None = None,
    check_index: CheckIndex = "warn",
    encoding: Mapping[Hashable, Any] | None = None,
    snapshot: str | None = None,
    write_inherited_coords: bool = False,
    compute: bool = True,
    progress: bool = False,
    scheduler: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    **options: Unpack[VariableKeywords],
) -> Any:
    """Write a dataset, a tree of datasets or a single array as a group of arrays, in one commit.

    All dask arrays are computed in one graph, and written in parallel. A reader that opens the group sees all of the
    commit or nothing of it: never a variable that has grown beside a coordinate that has not.

    Parameters
    ----------
    ds : xarray.Dataset, xarray.DataArray or xarray.DataTree
        What to write. The names of variables and dimensions must be strings.
    url : str or os.PathLike
        The group: a directory, a URL that fsspec understands, or a local ``.b2z`` file, which is rewritten as a whole.
    mode : {"w-", "x", "w", "a", "a-", "r+"}, optional
        "w-" or "x": create a new group. "w": replace the group and everything in it. "a": add new variables, and
        overwrite the values of existing ones. "a-": like "a", but with `append_dim` leave existing variables without
        that dimension unchanged. "r+": only overwrite values. The default is "a" with `append_dim`, "r+" with
        `region`, and otherwise "w-".
    group : str, optional
        The path of a group inside the group at `url`. Other groups there stay unchanged, in every mode.
    append_dim : str, optional
        Append to existing variables along this dimension. In a tree, append at all nodes that have the dimension.
    region : mapping of str to slice, or "auto", optional
        Write into a part of existing variables, which a slice for each dimension gives. "auto", for all dimensions or
        for one of them, finds the part by the values of the stored coordinate; a dimension without a coordinate must be
        whole. Indexes themselves are not written. If another writer changes the same chunks at the same time, values in
        memory are written again on top of its changes. Dask arrays are not: this raises ConflictError.
    check_index : {"warn", "error", "off"}, default "warn"
        What to do if the index along `append_dim` has values that are already stored, or that lie between stored ones.
        The other indexes of an append, and all indexes of a region, must equal the stored ones. Any other write may
        change an index, unless stored variables that it does not overwrite depend on that index. "off" compares no
        indexes, and overwrites them, as zarr does.
    encoding : mapping, optional
        By the name of a new variable, the entries that replace its ``encoding``: entries of the CF conventions, and
        ``chunks``, ``blocks``, ``access``, ``cparams``, ``layout`` and ``fill_value`` as in `b2array.create`.
        ``chunks`` may be a mapping by dimension. Stored times accept ``units`` and ``dtype``: the same commit stores
        them and their bounds again in these units. For a tree, give a mapping of this kind by the path of each node.
    snapshot : str, optional
        A name for the state after this commit. The same commit makes the snapshot; see `Group.snapshot`.
    write_inherited_coords : bool, default False
        For a tree: whether each node also stores the coordinates that it inherits.
    compute : bool, default True
        Whether to compute dask arrays now. With False, this call writes everything else, and creates the arrays with
        their fill value. It returns a `dask.delayed.Delayed`, which computes the items and commits them.
    progress : bool, default False
        Whether to show on stderr the progress of dask arrays.
    scheduler : str, callable or distributed.Client, optional
        The scheduler that computes dask arrays. By default dask chooses it.
    storage_options : mapping, optional
        Options for fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.
    chunks, ..., meta
        As for `b2array.create`, for all new variables.

    Returns
    -------
    None or dask.delayed.Delayed
        None if `compute` is True.

    Raises
    ------
    FileExistsError
        The group or the snapshot already exists.
    FileNotFoundError
        There is no group to change.
    KeyError
        `encoding` names a variable that does not exist, or ``region="auto"`` finds no values of a coordinate to look
        for, or does not find them among the stored ones.
    ValueError
        The variables, their indexes or the encoding do not fit what is stored. Nothing was written.
    TypeError
        Values or attributes cannot be stored.
    ConflictError
        Another writer changed the same chunks, or appended at the same time. Nothing was written.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from b2array.xarray_io import Backend
    >>> step = xr.Dataset({"level": (("time", "x"), np.zeros((1, 3)))}, {"time": [0]})
    >>> to_b2array(step, "memory://simulation.b2d")
    >>> to_b2array(step.assign_coords(time=[1]) + 1, "memory://simulation.b2d", append_dim="time")
    >>> ds = xr.open_dataset("memory://simulation.b2d", engine=Backend)
    >>> ds.time.values.tolist(), ds.level.sel(time=1).values.tolist()
    ([0, 1], [1.0, 1.0, 1.0])
    """
    if not isinstance(ds, xr.Dataset | xr.DataArray | xr.DataTree):
        raise TypeError(
            f"expected a dataset, an array or a tree of xarray, found {type(ds).__name__}; "
            "b2array.asarray(values, url=...) stores other arrays"
        )
    url, storage_options = address_of(url, storage_options, fs)
    task = WriteTask(_check_mode(mode, append_dim, region), append_dim, region, check_index, compute, options)
    _check_choices(task, snapshot, is_archive=is_changeable_archive(os.fspath(url), storage_options or {}))
    nodes = _list_nodes(ds, encoding or {}, inherit=write_inherited_coords)
    is_tree = isinstance(ds, xr.DataTree)
    if is_tree and append_dim is not None and not any(append_dim in node.ds.dims for node in nodes):
        raise ValueError(f"no node of the tree has a dimension {append_dim!r}")
    new = []
    if task.mode in ("w", "x"):
        # Check this before anything changes.
        new = [_encode(node, task) for node in nodes]
    name = (group or "").strip("/")
    for is_last in _try_again(nodes, task):
        try:
            with _transaction(url, task.mode, name, storage_options) as target:
                if snapshot is not None and compute:
                    _outermost(target).snapshot(snapshot)
                parts: list[WritePart] = []
                if task.mode in ("w", "x"):
                    for node, (variables, attrs) in zip(nodes, new, strict=True):
                        parts += create(group_at(target, node.path), variables, attrs, task)
                else:
                    parts += change(target, nodes, task, is_tree=is_tree)
                if compute and parts:
                    sources = [(part.array, part.values, part.region) for part in _align(parts)]
                    dask.join(sources, progress, scheduler)
        except ConflictError:
            if is_last:
                raise
        else:
            break
    return None if compute else _later(parts, os.fspath(url), storage_options or {}, snapshot)


def _try_again(nodes: Sequence[Node], task: WriteTask) -> Iterator[bool]:
    """Yield for each attempt at the commit whether it is the last one.

    Values in memory are written into a region again after another writer's commit. Appends are not repeated, because
    another writer may have appended the same values; and dask arrays may take hours to compute.
    """
    has_dask = any(is_dask(each) for node in nodes for each in node.ds.variables.values())
    if task.region is not None and task.append_dim is None and not has_dask:
        for attempt in range(config.retries * _PATIENCE):
            yield False
            time.sleep(pause(attempt))
    yield True


_PARAMETERS = inspect.signature(to_b2array).parameters
KEYWORDS: Final = {name: each.default for name, each in _PARAMETERS.items() if name not in ("ds", "url")}
"""The keywords of `to_b2array` with their defaults."""


# Arguments.


def _check_choices(task: WriteTask, snapshot: str | None, *, is_archive: bool) -> None:
    if task.check_index not in ("error", "warn", "off"):
        raise ValueError(f'check_index must be "error", "warn" or "off", not {task.check_index!r}')
    if is_archive and not task.compute:
        raise ValueError(
            "compute=False writes into a group later, and a .b2z file is packed now: write to a directory, such as"
            " name.b2d, and then pack it with b2array.convert('name.b2d', 'name.b2z')"
        )
    if is_archive and snapshot is not None:
        raise ValueError("a .b2z file cannot keep snapshots: write to a directory, such as name.b2d")


def _check_mode(mode: Mode | None, append_dim: Hashable | None, region: object) -> Mode:
    """Return the mode, or the mode that the other arguments imply; ValueError if they contradict each other."""
    if mode is None:
        mode = _default_mode(append_dim, region)
    if mode not in ("w", "w-", "x", "a", "a-", "r+"):
        raise ValueError(f"mode must be 'w', 'w-', 'x', 'a', 'a-' or 'r+', not {mode!r}")
    if append_dim is not None and mode not in ("a", "a-"):
        raise ValueError(f"cannot set append_dim unless mode='a', mode='a-' or mode=None, found {mode!r}")
    if region is not None and mode not in ("a", "a-", "r+"):
        raise ValueError(f"cannot set region unless mode='a', mode='a-', mode='r+' or mode=None, found {mode!r}")
    if isinstance(region, Mapping) and append_dim is not None and isinstance(region.get(append_dim), slice):
        raise ValueError(f"cannot list the same dimension in both append_dim and region: {append_dim!r}")
    return "x" if mode == "w-" else mode


def _default_mode(append_dim: Hashable | None, region: object) -> Mode:
    if append_dim is not None:
        return "a"
    return "w-" if region is None else "r+"


def _list_nodes(
    ds: xr.Dataset | xr.DataArray | xr.DataTree,
    encoding: Mapping[Hashable, Any],
    *,
    inherit: bool,
) -> list[Node]:
    if isinstance(ds, xr.DataTree):
        paths = [node.path for node in ds.subtree]
        unknown = [path for path in encoding if path not in paths]
        if unknown:
            raise ValueError(f"unexpected encoding group names: {unknown} are not paths of nodes")
        nodes = []
        for node in ds.subtree:
            path = node.path[len(ds.path) :].strip("/")
            # The tree may be a subtree, which would lose the coordinates that it inherits.
            own = node.to_dataset(inherit=inherit or node is ds)
            whole_node = node.to_dataset(inherit=True)
            nodes.append(Node(path, own, encoding.get(node.path, {}), whole_node))
        return nodes
    if isinstance(ds, xr.DataArray):
        # xarray refuses a dataset whose variable has the name of a coordinate or a dimension: note the name elsewhere.
        if ds.name is None or ds.name in ds.coords or ds.name in ds.dims:
            note = {} if ds.name is None else {_NAMED: ds.name}
            ds = ds.to_dataset(name=_NAMELESS).assign_attrs(note)
        else:
            ds = ds.to_dataset()
    return [Node("", ds, encoding, ds)]


def _encode(node: Node, task: WriteTask) -> tuple[dict[str, xr.Variable], dict[str, Any]]:
    variables, attrs = mark(node.ds)
    return encode(variables, node.encoding, task.options), attributes(attrs, "the dataset")


# The group.


@contextmanager
def _transaction(
    url: Url,
    mode: Mode,
    name: str,
    storage_options: Mapping[str, Any] | None,
) -> Iterator[Group]:
    """Open a group in a transaction, with its old contents even if they are to be replaced: the commit does that."""
    # A group inside is made or replaced, never the one around it.
    home_mode = "a" if name and mode in ("w", "x") else mode
    home, is_new = _open_home(url, home_mode, storage_options)
    try:
        inner = _find_group(home, name, mode) if name else home
        if inner is None:
            with home.transaction() as changes:
                yield changes.create_group(name)
        else:
            with inner.transaction(replace=mode == "w") as changes:
                yield changes
    except BaseException:
        # Leave no half-made group behind.
        there = home._home_to_change()
        if isinstance(there, Unpacked):
            there.discard()
        elif is_new:
            whole.discard(cast(GroupHome, there))
        raise
    if isinstance(home._home_to_change(), Unpacked):
        home.close()


def _find_group(home: Group, name: str, mode: Mode) -> Group | None:
    """Return the group of this name, or None if it must be made."""
    inner = home.get(name)
    if inner is not None and not isinstance(inner, Group):
        raise TypeError(f"{name!r} in {home.url} is an array, not a group")
    if inner is None and mode == "r+":
        raise FileNotFoundError(f"{home.url}: there is no group {name!r}")
    if inner is not None and mode == "x":
        raise FileExistsError(
            f"{home.url}: the group {name!r} already exists; mode='w' replaces it, mode='a' changes it"
        )
    return inner


def _open_home(url: Url, mode: Mode, storage_options: Mapping[str, Any] | None) -> tuple[Group, bool]:
    """Open the group, or make it; return it and whether it was made."""
    if is_changeable_archive(os.fspath(url), storage_options or {}):  # a new archive has no use for the old members
        return group.open_group(url, "a" if mode == "a-" else mode, storage_options=storage_options), False
    if mode != "x":
        try:
            home = group.open_group(url, "r+", storage_options=storage_options)
        except FileNotFoundError:
            if mode == "r+":
                raise
        else:
            there = cast(GroupHome, home._home_to_change())
            if mode == "w":
                whole.check_replaceable(there)
            if mode != "r+":
                whole.complete(there)
            return home, False
    opened: Any = "a" if mode == "a-" else mode
    return group.open_group(url, opened, storage_options=storage_options), True


def _outermost(target: Group) -> Group:
    """Return the group whose snapshots include this group."""
    while (outer := target.parent) is not None:
        target = outer
    return target


# Parts that dask computes.


def _later(
    parts: Iterable[WritePart],
    url: str,
    options: Mapping[str, Any],
    snapshot: str | None,
) -> Delayed:
    """Return a delayed that computes all parts, and commits them together to arrays that already exist."""
    home = group.open_group(url, "r+", storage_options=options)
    home = _outermost(home)
    writes = []
    names = []
    for part in _align(parts):
        handle = home[part.path]._handle
        fork_point = make_fork_point(handle.new_draft(), lasts=True)
        writes.append(Write(part.values, fork_point, NDArray(handle)._layout, part.region))
        names.append(part.path)
    name = f"b2array-commit-{uuid4().hex}"
    place = cast(GroupHome, home._home_to_change()).address("")  # absolute: tasks may run in another working directory
    shared = Shared(name, (place, dict(options), names, [write.point for write in writes], snapshot))
    return dask.final(writes, name, _commit, shared)


def _commit(
    put: Sequence[Any], shared: Shared[tuple[str, dict[str, Any], list[str], list[ForkPoint], str | None]]
) -> None:
    url, options, names, points, snapshot = shared.value
    home = group.open_group(url, "r+", storage_options=options)
    try:
        _commit_parts(home, names, points, dask.gather_changes(put), snapshot)
    except (ConflictError, FileExistsError):
        # Another run of this task may have been faster.
        home.refresh()
        states = [home[name]._handle.revision.state for name in names if name in home]
        if not _have_all(states, points):
            raise
    for point in points:
        remove_journal(point)


def _commit_parts(
    home: Group,
    names: Sequence[str],
    points: Sequence[ForkPoint],
    parts: Sequence[Sequence[ChangeSet]],
    snapshot: str | None,
) -> None:
    """Commit the changes of forks in a group, and a snapshot if it has a name, unless an earlier run has done so."""
    with home.transaction() as changes:
        drafts = [_draft_of(changes, name) for name in names]
        # A cluster may run this task again.
        if _have_all([draft.state for draft in drafts], points):
            return
        if snapshot is not None:
            changes.snapshot(snapshot)
        for draft, point, of_array in zip(drafts, points, parts, strict=True):
            accept_forks(point, draft)
            merge_changes(draft, of_array, again=True)
            note_forks(point, draft)


def _draft_of(changes: Group, name: str) -> Draft:
    """Return the draft of a member in a transaction."""
    draft = changes[name]._handle.draft
    if draft is None:
        raise make_ended_error(changes.url)
    return draft


def _have_all(states: Sequence[State], points: Sequence[ForkPoint]) -> bool:
    """Return whether the forks of each point were committed to its array, whose state is in the same place."""
    if not points or len(states) != len(points):
        return False
    return all(was_committed(state, point) for state, point in zip(states, points, strict=True))


def _align(parts: Iterable[WritePart]) -> list[WritePart]:
    """Rechunk arrays that do not consist of whole stored chunks, and warn once about all of them."""
    from dask.array.core import PerformanceWarning

    aligned = []
    moved = []
    nbytes = 0.0
    for part in parts:
        dask.check_source(part.values)
        starts = [along.start for along in part.region]
        cut = dask_chunks.align(part.values.chunks, part.array.chunks, starts)
        if cut != part.values.chunks:
            moved.append(part.path)
            nbytes += part.values.nbytes
            part = part._replace(values=part.values.rechunk(cut))  # noqa: PLW2901
        aligned.append(part)
    if nbytes >= _WORTH_A_WARNING:
        warn(
            f"the dask chunks of {moved} do not consist of whole stored chunks: {nbytes / 1e6:.1f} MB move between "
            "tasks",
            PerformanceWarning,
        )
    return aligned
