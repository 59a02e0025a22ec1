"""Groups of Blosc2 frames as sources and destinations: directories, prefixes, and ``.b2z`` archives.

An archive is a zip file that stores the frame of each member without compressing it again. The frame in which
python-blosc2 keeps small members must be there, and is empty. Source: "APPNOTE.TXT - .ZIP File Format Specification",
through `zipfile`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

from b2array.array import array_copying, drafts
from b2array.array.described import Attributes
from b2array.array.drafts import AnyPlace, ArrayOptions, Kind
from b2array.array.schunk import create_schunk
from b2array.catalog.group_places import ZIP
from b2array.catalog.ledgers import group_ledger
from b2array.catalog.manifest import ARRAY, ATTRS, EMBEDDED, OTHER, check_name, is_attrs
from b2array.commit.copied_states import KeptState
from b2array.commit.draft import Draft
from b2array.commit.frame_commit import commit
from b2array.commit.handle import Handle, Mode
from b2array.errors import B2ArrayError, FormatError, ReadOnlyError, UnsupportedError
from b2array.exchange import formats
from b2array.exchange.formats import ArraySource, Build, Building, Format, Hierarchy, Options, Piece, Storage
from b2array.group import embedded, whole
from b2array.group.addressing import split_member
from b2array.group.archive import Archive
from b2array.group.embedded import EMBED_SUFFIX, EmbedFile
from b2array.group.group_snapshot import SnapshotHome, dropped_meanwhile, find_snapshot, load_earlier_states
from b2array.group.homes import GroupHome
from b2array.group.listed_group import group_at
from b2array.group.new_members import NewFrame, copier_of
from b2array.group.snapshot_writing import copy_snapshots
from b2array.group.transaction import begin
from b2array.group.unpacked import is_changeable_archive, open_unpacked
from b2array.store.atomic import AtomicFile, place_beside, require_free
from b2array.store.local_store import LocalStore
from b2array.store.open import open_store
from b2array.store.secrets import redact_url

__all__ = ["B2D", "B2E", "B2Z", "members_of", "tree_of"]


class Container(Protocol):
    """An object that opens the members of a group."""

    def open(self, path: str, mode: Mode, /) -> Handle:
        """Open the member with a path."""


def members_of(url: str, storage_options: Storage) -> tuple[GroupHome | Archive, dict[str, str], B2ArrayError | None]:
    """Find the members of a group, or of the inner group named after ``#``, including frames of attributes.

    Return the home of the group, the paths of the members by name, and an error if the list may be incomplete.
    """
    address, wanted = split_member(url)
    home, error = whole.home_of(address, storage_options or {}), None
    try:
        paths = home.members()
    except B2ArrayError as damage:
        # The manifest or the embedding frame is damaged, but the members can still be found by their file names.
        if isinstance(home, Archive):
            raise
        try:
            home.show_files(home.store.walk())
        except UnsupportedError:
            raise damage from None
        paths, error = home.members(), damage
    if isinstance(home, Archive) and not paths and not address.endswith(".b2z"):
        raise FormatError(f"{home.url}: expected an archive of Blosc2 frames, found a zip archive without any")
    name = wanted if wanted in paths else wanted.removesuffix(ARRAY).removesuffix(OTHER)
    if name in paths:
        return home, {"": paths[name]}, error
    start = f"{name}/" if name else ""
    below = {each[len(start) :]: path for each, path in paths.items() if each.startswith(start)}
    if wanted and not below:
        raise FileNotFoundError(f"{home.url} has no member {wanted!r}")
    return home, below, error


@contextmanager
def _tree(url: str, storage_options: Storage) -> Iterator[Hierarchy]:
    home, paths, error = members_of(url, storage_options)
    snapshots = {}
    if isinstance(home, GroupHome) and not split_member(url)[1]:
        # A damaged list of snapshots must not prevent the members from being copied.
        with suppress(FormatError, UnsupportedError):
            ledger = group_ledger(home.url, home.load_manifest(cached=True))
            snapshots = {name: partial(_open_listed, home, name) for name in ledger.names}
    yield replace(tree_of(home, paths, error), snapshots=snapshots)


def _open_listed(home: GroupHome, name: str) -> SnapshotHome:
    """Load a group at a snapshot that it had a moment ago; ConflictError if the snapshot was dropped since."""
    try:
        return find_snapshot(home, name)
    except KeyError:
        raise dropped_meanwhile(home.url, name) from None


def tree_of(home: Container, paths: Mapping[str, str], error: Exception | None = None) -> Hierarchy:
    """Return the members of a group, and the attributes of inner groups, as a source for `convert`."""

    def open_source(name: str) -> ArraySource:
        return formats.source_of(home.open(paths[name], "r"))

    def attrs(path: str) -> dict[str, Any]:
        return dict(Attributes(home.open(path, "r")))

    groups = {name: path for name, path in paths.items() if is_attrs(name)}
    return Hierarchy(
        tuple(name for name in paths if name not in groups),
        open_source,
        {name.removesuffix(ATTRS).rstrip("/"): partial(attrs, path) for name, path in groups.items()},
        error,
    )


def _frame(
    source: ArraySource,
    pieces: Iterable[Piece],
    settings: Options,
    earlier: Sequence[KeptState] = (),
) -> tuple[str, NewFrame]:
    """Return the suffix of a member, and a function that makes its frame, if possible without compressing again.

    The frame keeps the `earlier` states, which snapshots of the group name.
    """
    handle, storage = source.handle, settings.storage_options or {}
    if handle is not None and source.is_bytes:
        return OTHER, copier_of(handle, storage, snapshots=settings.snapshots, earlier=earlier)

    def new(url: AnyPlace, *, overwrite: bool, layout: Kind = "auto") -> Draft:
        kind = settings.layout if layout == "auto" else layout
        if handle is None:
            options = formats.array_options(source, settings._replace(layout=kind, overwrite=overwrite))
            return drafts.draft_filled(url, source.shape, source.dtype, options, pieces)
        chunks, blocks = settings.given
        return array_copying.copy_array(
            handle,
            url,
            ArrayOptions(
                chunks=chunks,
                blocks=blocks,
                access=settings.access,
                cparams=settings.cparams,
                layout=kind,
                overwrite=overwrite,
                storage_options=storage,
            ),
            snapshots=settings.snapshots,
            earlier=earlier,
        )

    return ARRAY, new


def _attributes(attrs: Mapping[str, Any], storage: Storage) -> NewFrame:
    frame = create_schunk(chunksize=2**13)
    frame.vlmeta.update(attrs)
    return copier_of(frame._handle, storage or {})


def _path(prefix: str, name: str) -> str:
    return check_name(f"{prefix}/{name}" if prefix and name else prefix or name)


@contextmanager
def _tree_b2e(url: str, storage_options: Storage) -> Iterator[Hierarchy]:
    """Open the members of an embedding store of python-blosc2, or the single member named after ``#``."""
    address, name = split_member(url)
    home = EmbedFile(address, storage_options or {})
    try:
        paths = home.members()
        if name and name not in paths:
            raise FileNotFoundError(f"{home.url} has no member {name!r}")
        yield tree_of(home, {"": paths[name]} if name else paths)
    finally:
        home.store.close()


def _refuse_b2e(url: str, *_: object) -> NoReturn:
    raise ReadOnlyError(f"{redact_url(url)}: stores of python-blosc2 in one frame can only be read; write .b2d or .b2z")


@contextmanager
def _building_b2d(url: str, settings: Options) -> Iterator[Building]:
    """Write members in one commit, into the inner group named after ``#`` if there is one."""
    address, prefix = split_member(url.removesuffix(ARRAY))
    storage = settings.storage_options or {}
    home = group_at(address, storage)
    is_new = not whole.exists(home)
    if is_new:
        whole.initialise(home)
    else:
        if not prefix and not settings.overwrite and (home.members() or not home.is_local):
            raise FileExistsError(f"{home.url} exists; overwrite=True replaces it")
        if not prefix:
            whole.check_replaceable(home)
        whole.complete(home)
        home.recover()
    try:
        with _building_in(home, prefix, settings) as building:
            yield building
    except BaseException:
        if is_new:
            # An empty group would make the next attempt fail.
            whole.discard(home)
        raise


@contextmanager
def _building_in(home: GroupHome, prefix: str, settings: Options) -> Iterator[Building]:
    """Write members below a prefix of a group in one commit; without a prefix, replace all other members."""
    storage = settings.storage_options or {}
    changes = begin(home, None if prefix else "")
    snapshots, identity = settings.of_group, changes.change.identity.encode()
    try:

        def add(
            full: str,
            suffix: str,
            new: NewFrame,
            what: str,
            *,
            overwrite: bool,
        ) -> None:
            old = {full: path} if (path := changes.members().get(full)) else {}
            if old and not overwrite:
                raise FileExistsError(f"{home.url}{what}")  # noqa: TRY301
            changes.remove(old)
            try:
                changes.create(full, suffix, new, overwrite=False).close()
            except BaseException:
                changes.put_back(old)  # keep the old member if the new one cannot be read
                raise

        def put(
            name: str,
            source: ArraySource,
            pieces: Iterable[Piece],
            settings: Options,
        ) -> None:
            full = _path(prefix, name)
            what = f" holds {full!r} already; overwrite=True replaces it"
            handle = source.handle
            earlier = [] if handle is None else load_earlier_states(snapshots, name, identity, handle.revision)
            add(
                full,
                *_frame(source, pieces, settings, earlier),
                what,
                overwrite=settings.overwrite,
            )

        def group(name: str, attrs: Mapping[str, Any]) -> None:
            where = f"{prefix}/{name}/".replace("//", "/").lstrip("/")
            if attrs or not any(other.startswith(where) for other in changes.members()):
                what = f"/{where} has attributes already; overwrite=True replaces them"
                add(
                    where + ATTRS,
                    OTHER,
                    _attributes(attrs, storage),
                    what,
                    overwrite=settings.overwrite,
                )

        yield Building(put, group)
        if snapshots:
            copy_snapshots(changes, changes.change, snapshots)
    except BaseException:
        changes.abort()
        raise
    changes.commit()


@contextmanager
def _building_b2z(url: str, settings: Options) -> Iterator[Building]:
    """Write an archive. A temporary file next to it contains the frame of one member at a time."""
    address, prefix = split_member(url.removesuffix(ARRAY))
    store = open_store(address, storage_options=settings.storage_options)
    (there,) = store.head([""], 1)
    if prefix and not isinstance(there, Exception):
        with _building_into_b2z(address, prefix, settings) as building:
            yield building
        return
    require_free(store, {"": ZIP[0][:2]}, "an archive", overwrite=settings.overwrite)
    with AtomicFile(store, overwrite=settings.overwrite) as path, zipfile.ZipFile(path, "w") as archive:
        archive.writestr(EMBEDDED, embedded.pack_empty_frame())

        beside = str(Path(store.url).resolve()) if isinstance(store, LocalStore) else path

        def add(member: str, new: NewFrame) -> None:
            with place_beside(beside) as frame:
                commit(new(frame, overwrite=False, layout="contiguous"))
                archive.write(frame, member)

        def put(
            name: str,
            source: ArraySource,
            pieces: Iterable[Piece],
            settings: Options,
        ) -> None:
            suffix, new = _frame(source, pieces, settings._replace(storage_options=None))
            add(_path(prefix, name) + suffix, new)

        def group(name: str, attrs: Mapping[str, Any]) -> None:
            add(f"{prefix}/{name}/{ATTRS}{OTHER}".replace("//", "/").lstrip("/"), _attributes(attrs, None))

        yield Building(put, group)


@contextmanager
def _building_into_b2z(address: str, prefix: str, settings: Options) -> Iterator[Building]:
    """Add members to an existing archive."""
    storage = settings.storage_options or {}
    if not is_changeable_archive(address, storage):
        raise ReadOnlyError(
            f"{redact_url(address)} is an archive on another computer, to which no member can be added: convert the"
            " members to a new archive"
        )
    home = open_unpacked(address, storage, "r+", resume=None)
    try:
        with _building_in(home, prefix, settings) as building:
            yield building
    except BaseException:
        home.discard()
        raise
    home.close()


def _format(name: str, build: Build, magics: tuple[bytes, ...] = ()) -> Format:
    return Format(
        name,
        (f".{name}",),
        _tree,
        formats.refuse_objects,
        formats.lone(build),
        keeps=formats.KEPT_BY_FRAMES,
        building=build,
        magics=magics,
    )


B2D, B2Z = _format("b2d", _building_b2d), _format("b2z", _building_b2z, ZIP)
B2E = Format(
    "b2e",
    (EMBED_SUFFIX,),
    _tree_b2e,
    formats.refuse_objects,
    _refuse_b2e,
    building=_refuse_b2e,
)
