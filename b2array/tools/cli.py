"""The program `b2array`: its commands and exit codes. Only `__main__` imports this module."""

from __future__ import annotations

import functools
import io
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TextIO

import numpy as np
import typer

from b2array import bloscpack, config
from b2array.array.array import NDArray
from b2array.array.drafts import AnyPlace, ArrayOptions, place_new
from b2array.array.frame_making import make
from b2array.array.schunk import SChunk
from b2array.catalog.manifest import OTHER
from b2array.codec.cparams import CParams
from b2array.commit.copied_states import states_to_copy
from b2array.commit.draft import Draft
from b2array.commit.handle import Handle
from b2array.commit.prepare import copy_frame
from b2array.display import text_tables
from b2array.errors import FormatError, UnsupportedError
from b2array.exchange.convert import convert_to, is_array, save_intact
from b2array.exchange.formats import BLP, BLP_BYTES, BYTES, holds_array
from b2array.exchange.places import by_ending, find, require_frames
from b2array.frame.revision import Revision
from b2array.group import addressing
from b2array.group.group import Group
from b2array.printable import json_text, printable
from b2array.progress import Progress, track
from b2array.store.atomic import AtomicFile, require_free
from b2array.store.open import open_store
from b2array.store.secrets import redact_url
from b2array.tools import anatomy, comparing, describing, member_commands
from b2array.tools import bench as measuring
from b2array.tools import demo as demonstration
from b2array.tools import expire as expiring
from b2array.tools import options as opts
from b2array.tools import repair as repairing
from b2array.tools import vacuum as vacuuming
from b2array.tools import verify as verifying
from b2array.tools.output import WRITERS, Writer
from b2array.tools.results import Result, Results

__all__ = ["app", "main"]

P = ParamSpec("P")

OK = 0
ERROR = 1
USAGE = 2
CORRUPT = 3

_FRAMES = ("b2nd", "b2d", "b2z")
"""Formats that consist of Blosc2 frames."""

_MOST_ITEMS = 1000
_MOST_NBYTES = 2**28
"""The limits of `cat`: more items are printed only on request, and of more bytes, only the printed items are read."""

# Some versions of Typer import Click, others bundle a copy.
_UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="b2array",
    help="Look at, read, convert and check arrays in the Blosc2 formats, in files and at URLs.",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        _say(metadata.version("b2array"))
        raise typer.Exit


_VERSION = typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)


@app.callback()
def _options(*, version: Annotated[bool, _VERSION] = False) -> None:
    pass


@functools.cache
def _program() -> Any:
    """Build the program, once: for repeated calls of `main`, this takes longer than a small command."""
    return typer.main.get_command(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; see `b2array.__main__.main`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # some encodings lack characters of names and drawings
    with warnings.catch_warnings():
        setattr(warnings, "showwarning", _warn)  # noqa: B010 - a simpler signature does
        warnings.simplefilter("always", UserWarning)
        try:
            result = _program()(args=arguments, prog_name="b2array", standalone_mode=False)
            return _code(result)
        except SystemExit as end:
            return _code(end.code)
        except typer.Abort:
            return ERROR
        except _UsageError as error:
            # Without arguments, users want the help text, not an error.
            text = _misunderstood(error) if arguments else error.ctx.get_help()
            _say(text, to=sys.stderr)
            return USAGE


def _code(result: object) -> int:
    return result if isinstance(result, int) else OK


def _misunderstood(error: Any) -> str:
    """Return a one-line error about the arguments, with a hint how to get help."""
    command = "b2array" if error.ctx is None else error.ctx.command_path
    # Click writes full sentences, sometimes on several lines; errors of b2array are phrases on one line.
    text = " ".join(error.format_message().split()).rstrip(".")
    return f"{command}: {text[:1].lower()}{text[1:]} (see {command} --help)"


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    _complain(message)


def _command(verb: Callable[P, int | None]) -> Callable[P, None]:
    """Turn a function into a command that reports an error as one line and an exit code."""

    @app.command(verb.__name__)
    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = verb(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of the output has closed the pipe; an open stdout would make the interpreter fail at exit.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            code = OK
        except _UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - clients of servers raise many kinds of errors
            _complain(opts.error_text(error))
            code = CORRUPT if isinstance(error, FormatError) else ERROR
        if code:
            raise typer.Exit(code)

    return run


def _say(*lines: str, to: TextIO | None = None) -> None:
    """Print lines, by default on stdout. All output of the program uses this function."""
    for line in lines:
        print(printable(line, keep_lines=True), file=to)


def _complain(message: object) -> None:
    _say(f"b2array: {printable(message)}", to=sys.stderr)


def _print(as_json: bool, data: Any, lines: Iterable[str]) -> None:
    if as_json:
        lines = [json_text(describing.plain(data))]
    _say(*lines)


@_command
def info(
    url: opts.Url,
    as_json: opts.Json = False,
    chunks: Annotated[bool, typer.Option("--chunks", help="Sizes, ratios, dead space, a map of the chunks.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Every field of header, index and trailer.")] = False,
    at: opts.At = None,
    storage: opts.Storage = None,
) -> int:
    """Describe an array or a group."""
    options = opts.storage_options(storage)
    if at is not None and (raw or chunks):
        raise typer.BadParameter("--raw and --chunks show the whole file, and not a snapshot", param_hint="--at")
    if raw:
        with describing.open_frame(url, options) as source:
            fields = list(anatomy.fields(source))
        rows = [("part", "offset", "bytes", "field", "value", "meaning")]
        for field in fields:
            row = (field.part, str(field.offset), _hex(field.raw), field.name, str(field.value), field.meaning)
            rows.append(row)
        by_name = [field._asdict() for field in fields]
        _print(as_json, by_name, text_tables.text_table(rows, "<><<<<"))
        return OK
    about = describing.describe(url, options, at)
    data = about.typed
    lines: Iterable[str] = describing.lines(about.rows)
    if chunks:
        with describing.open_frame(url, options) as source:
            sizes = anatomy.survey(source)
        data = data | {"sizes": sizes.data()}
        lines = chain(lines, [""], sizes.lines())
    _print(as_json, data, lines)
    return _report(about.failed)


def _hex(raw: bytes) -> str:
    return raw.hex(" ") if len(raw) <= 8 else f"{raw[:7].hex(' ')} ..."


def _report(failed: Mapping[str, Exception]) -> int:
    """Print the errors of members, and return the exit code."""
    for name, error in failed.items():
        _complain(f"{name}: {opts.error_text(error)}" if name else opts.error_text(error))
    if any(isinstance(error, FormatError) for error in failed.values()):
        return CORRUPT
    return ERROR if failed else OK


@_command
def ls(
    url: opts.Url,
    as_json: opts.Json = False,
    at: opts.At = None,
    storage: opts.Storage = None,
) -> int:
    """List members of a group, or one array, with sizes and ratios."""
    listed, failed = describing.list_members(url, opts.storage_options(storage), deep=False, at=at)
    members = {name: member for name, member in listed.items() if name}
    rows = [describing.row(name, member) for name, member in members.items()]
    _print(as_json, members, text_tables.text_table(rows, "<<<>>") if rows else ())
    return _report(failed)


@_command
def tree(url: opts.Url, at: opts.At = None, storage: opts.Storage = None) -> int:
    """Draw a group as a tree of all its members."""
    members, failed = describing.list_members(url, opts.storage_options(storage), deep=True, at=at)
    _say(*describing.draw_tree(members))
    return _report(failed)


@_command
def cat(
    url: opts.Url,
    key: Annotated[str, typer.Argument(help='As between brackets in NumPy: "[0:3, ::-1]".')] = "[...]",
    output: Annotated[
        str | None, typer.Option("-o", "--output", help="A .npy or .csv file to write, or - for standard output.")
    ] = None,
    output_format: Annotated[
        Any,
        typer.Option("--format", metavar="KIND", help="npy or csv, of what -o writes.", parser=opts.one_of(*WRITERS)),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print all items of large results.")] = False,
    at: opts.At = None,
    overwrite: opts.Overwrite = False,
    storage: opts.Storage = None,
) -> None:
    """Print a part of an array, or write it as .npy or .csv."""
    try:
        wanted = opts.key_of(key)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="KEY") from None
    options = opts.storage_options(storage)
    writes = None if output is None else _writer(output, output_format)
    store = None if output in (None, "-") else open_store(str(output), storage_options=options)
    if store is not None:
        require_free(store, {"": b""}, "a file", overwrite=overwrite)
    kind, address = find(url, None, options, exists=True, at=at)
    threshold = sys.maxsize if every else _MOST_ITEMS
    with kind.open(address, options) as source:
        is_large = source.nbytes > _MOST_NBYTES and math.prod(source.shape) > threshold
        if wanted is ... and writes is None and is_large and source.handle is not None:
            # NumPy prints only the first and last items along each axis, so read only those.
            wanted = np.ix_(*map(_ends, source.shape))
            threshold = 0
        values = source.read(wanted)
    if writes is None:
        _say(np.array2string(np.asarray(values), threshold=threshold))
    elif store is None:
        writes(sys.stdout.buffer, np.asarray(values))
    else:
        with AtomicFile(store, overwrite=overwrite) as path, Path(path).open("wb") as file:
            writes(file, np.asarray(values))


def _ends(n: int) -> Sequence[int]:
    """Return the positions of the items that NumPy prints along an axis, and one more, so that NumPy prints dots."""
    if n <= 7:
        return range(n)
    return 0, 1, 2, 3, n - 3, n - 2, n - 1


def _writer(output: str, chosen: str | None) -> Writer:
    """Return the writer for the chosen format, or else for the file extension."""
    ending = output.partition("?")[0].lower().rpartition(".")[2]
    name = chosen or (ending if ending in WRITERS else None)
    if name is None and output == "-":
        raise ValueError("-o - writes to standard output: add --format npy or --format csv")
    if name is None:
        raise ValueError(
            f"{redact_url(output)} ends neither in .npy nor in .csv; cat writes these with --format, "
            "see also b2array convert"
        )
    return WRITERS[name]


@_command
@opts.take_cparams
def convert(
    src: opts.Src,
    dst: opts.Dst,
    src_format: opts.Name = None,
    dst_format: opts.Name = None,
    chunks: opts.Extents = None,
    blocks: opts.Extents = None,
    access: opts.Access = None,
    cparams: CParams | None = None,
    layout: opts.Layout = "auto",
    zarr_format: Annotated[int | None, typer.Option(min=2, max=3, help="2 or 3.")] = None,
    compression: Annotated[str | None, typer.Option(help="Of HDF5: gzip, blosc or blosc2.")] = None,
    overwrite: opts.Overwrite = False,
    verify: opts.Verify = False,
    follow_external: Annotated[
        bool, typer.Option("--follow-external", help="Read what an HDF5 file names in other files.")
    ] = False,
    at: opts.At = None,
    snapshots: opts.Snapshots = True,
    progress: opts.Progress = None,
    storage: opts.Storage = None,
    src_storage: opts.SrcStorage = None,
    dst_storage: opts.DstStorage = None,
) -> int:
    """Copy an array or a group to another format."""
    options, others = opts.both_options(storage, src_storage, dst_storage)
    format_options = {"zarr_format": zarr_format, "compression": compression}
    more: dict[str, Any] = {name: value for name, value in format_options.items() if value is not None}
    done = convert_to(
        src,
        dst,
        src_format=src_format,
        dst_format=dst_format,
        chunks=chunks,
        blocks=blocks,
        access=access,
        cparams=cparams,
        layout=layout,
        overwrite=overwrite,
        verify=verify,
        progress=opts.shows(progress),
        follow_external=follow_external,
        at=at,
        snapshots=snapshots,
        src_options=options,
        dst_options=others,
        **more,
    )
    _say(f"{redact_url(dst)}: {done.summary()}")
    return _report(done.failed)


@_command
@opts.take_cparams
def copy(
    src: opts.Src,
    dst: opts.Dst,
    layout: opts.Layout = "auto",
    chunks: opts.Extents = None,
    blocks: opts.Extents = None,
    access: opts.Access = None,
    cparams: CParams | None = None,
    overwrite: opts.Overwrite = False,
    at: opts.At = None,
    snapshots: opts.Snapshots = True,
    progress: opts.Progress = None,
    storage: opts.Storage = None,
    src_storage: opts.SrcStorage = None,
    dst_storage: opts.DstStorage = None,
) -> int:
    """Copy an array or a group of Blosc2 frames, chunk by chunk."""
    options, others = opts.both_options(storage, src_storage, dst_storage)
    origin, address = find(src, None, options, exists=True, at=at)
    several = False
    if origin.name not in _FRAMES:
        raise UnsupportedError(f"{redact_url(src)} is of the format {origin.name}; see b2array convert")
    target = by_ending(dst)[0]
    if target is not None and target.name not in _FRAMES:
        raise ValueError(f"{redact_url(dst)} has an ending that copy does not write; see b2array convert")
    if origin.name != "b2nd":
        with origin.tree(address, options) as members:
            several = members.names != ("",)
    if several or (target is not None and target.building is not None):
        done = convert_to(
            src,
            dst,
            dst_format=None if target is not None else "b2d",
            chunks=chunks,
            blocks=blocks,
            access=access,
            cparams=cparams,
            layout=layout,
            overwrite=overwrite,
            progress=opts.shows(progress),
            at=at,
            snapshots=snapshots,
            src_options=options,
            dst_options=others,
        )
        _say(f"{redact_url(dst)}: {done.summary()}")
        return _report(done.failed)
    revision = describing.frame_of(src, options, at)
    if not holds_array(revision.frame):
        if any(option is not None for option in (chunks, blocks, access, cparams)):
            raise UnsupportedError(f"{redact_url(src)} is no array: its chunks can only be copied as they are")
        with track(revision.frame.nchunks, "chunks copied", opts.shows(progress), unit="items") as bar:
            wanted = ArrayOptions(layout=layout, overwrite=overwrite, storage_options=others)
            make(dst, wanted, partial(_copy_frame, revision, bar, snapshots=snapshots), OTHER)
        count = text_tables.count_text(revision.frame.nchunks, "chunk")
        nbytes = text_tables.nbytes(revision.frame.cbytes)
        _say(f"{redact_url(dst)}: {count} in {nbytes}")
        return OK
    started = time.perf_counter()
    with NDArray(Handle(revision, "r")).copy(
        dst,
        chunks=chunks,
        blocks=blocks,
        access=access,
        cparams=cparams,
        layout=layout,
        overwrite=overwrite,
        progress=opts.shows(progress),
        snapshots=snapshots,
        storage_options=others,
    ) as copy_:
        ratio = f"{copy_.cratio:.2f}" if copy_.cbytes else "none"
        sizes = f"{text_tables.size(copy_.nbytes)} in {text_tables.size(copy_.cbytes)}"
        seconds = time.perf_counter() - started
        _say(f"{redact_url(dst)}: 1 array of {sizes}, ratio {ratio}, {seconds:.2f} s")
    return OK


def _copy_frame(revision: Revision, bar: Progress, where: AnyPlace, final: ArrayOptions, *, snapshots: bool) -> Draft:
    place = place_new(
        where,
        final.layout,
        final.storage_options,
        fs=final.fs,
        overwrite=final.overwrite,
    )
    states = states_to_copy(revision) if snapshots else []
    return copy_frame(
        revision,
        place.store,
        place.kind,
        overwrite=final.overwrite,
        progress=bar,
        kept=states,
        first=place.first,
    )


@_command
def pack(
    src: opts.Src,
    dst: opts.Dst,
    checksum: opts.Checksum = "adler32",
    offsets: Annotated[bool, typer.Option(help="Whether to store the offsets of the chunks.")] = True,
    chunk_size: Annotated[int | None, typer.Option(min=1, help="Bytes in a chunk before compression.")] = None,
    codec: opts.Codec = None,
    clevel: opts.Clevel = None,
    filters: opts.Filters = None,
    overwrite: opts.Overwrite = False,
    verify: opts.Verify = False,
    progress: opts.Progress = None,
    storage: opts.Storage = None,
    src_storage: opts.SrcStorage = None,
    dst_storage: opts.DstStorage = None,
) -> None:
    """Write an array, or any file, to a Bloscpack file (.blp)."""
    options, others = opts.both_options(storage, src_storage, dst_storage)
    # blpk packs any file, but only an array has a dtype and a shape to preserve.
    src_format, dst_format = (None, BLP) if is_array(src, options) else (BYTES, BLP_BYTES)
    convert_to(
        src,
        dst,
        src_format=src_format,
        dst_format=dst_format,
        cparams=opts.cparams_of(codec, clevel, filters),
        overwrite=overwrite,
        verify=verify,
        progress=opts.shows(progress),
        src_options=options,
        dst_options=others,
        checksum=checksum,
        offsets=offsets,
        chunk_size=chunk_size,
    )


@_command
def unpack(
    src: opts.Src,
    dst: opts.Dst,
    partial: Annotated[
        bool, typer.Option("--partial", help="Of a damaged file, write the part before the damage.")
    ] = False,
    overwrite: opts.Overwrite = False,
    verify: opts.Verify = False,
    progress: opts.Progress = None,
    storage: opts.Storage = None,
    src_storage: opts.SrcStorage = None,
    dst_storage: opts.DstStorage = None,
) -> int | None:
    """Write the content of a Bloscpack file to another file."""
    options, others = opts.both_options(storage, src_storage, dst_storage)
    with bloscpack.open(src, storage_options=options) as f:
        if partial:
            data, error = f.read_intact()
            save_intact(data, dst, overwrite=overwrite, storage_options=others)
            if error is None:
                return OK
            _complain(opts.error_text(error))
            return CORRUPT
        dst_format = None if f.is_array else BYTES
    convert_to(
        src,
        dst,
        src_format=BLP,
        dst_format=dst_format,
        overwrite=overwrite,
        verify=verify,
        progress=opts.shows(progress),
        src_options=options,
        dst_options=others,
    )
    return OK


@_command
def bench(
    url: opts.Url,
    alternatives: Annotated[bool, typer.Option(help="Also with other filters, chunks and blocks.")] = True,
    absolute_error: opts.AbsoluteError = None,
    relative_error: opts.RelativeError = None,
    keepbits: opts.Keepbits = None,
    as_json: opts.Json = False,
    progress: opts.Progress = None,
    storage: opts.Storage = None,
) -> None:
    """Measure reads, also with other filters, chunks and blocks."""
    own = []
    stored = []
    others = []
    bounds = opts.cparams_of(None, None, None, absolute_error, relative_error, keepbits)
    revision = describing.frame_of(url, opts.storage_options(storage))
    if not holds_array(revision.frame):
        raise UnsupportedError(f"{revision.url} is a super-chunk: bench measures arrays")
    with track(None, "measuring", opts.shows(progress), unit="items") as bar:
        a = NDArray(Handle(revision, "r"))
        for each in measuring.patterns(a):
            own.append(each)
            bar.advance()
        for entry in measuring.compressions(a, bounds) if alternatives or bounds else ():
            stored.append(entry)
            bar.advance()
        for each in measuring.alternatives(a) if alternatives else ():
            others.append(each)
            bar.advance()
    lines = text_tables.text_table(list(measuring.rates(own)), "<>>>")
    if stored:
        below = text_tables.text_table(list(measuring.compression_rows(stored)), "<>>>>")
        lines = chain(lines, ["", "A sample in memory, with other parameters:", ""], below)
    if others:
        below = text_tables.text_table(list(measuring.comparison_rows(others)), "<<>" + ">" * len(own))
        lines = chain(lines, ["", "A sample in memory, with other chunks and blocks, in milliseconds:", ""], below)
    data = {
        "file": [each._asdict() for each in own],
        "compression": [each._asdict() for each in stored],
        "sample": [each._asdict() for each in others],
    }
    _print(as_json, data, lines)


def _show(done: Result, as_json: bool) -> int:
    """Print a result, and return the exit code."""
    _print(as_json, done.to_dict(), [opts.with_options(str(done))])
    if done.ok:
        return OK
    return CORRUPT if not isinstance(done, Results) or done.damaged else ERROR


@_command
def verify(
    url: opts.Url,
    deep: Annotated[bool, typer.Option("--deep", help="Read, compare and decode all of each chunk.")] = False,
    at: opts.At = None,
    as_json: opts.Json = False,
    progress: opts.Progress = None,
    storage: opts.Storage = None,
) -> int:
    """Check a frame or a group; exit code 3 if it is damaged."""
    options = opts.storage_options(storage)
    done = verifying.verify(url, deep=deep, at=at, storage_options=options, progress=opts.shows(progress))
    return _show(done, as_json)


@_command
def repair(
    url: opts.Url,
    dry_run: opts.DryRun = False,
    backup: Annotated[bool, typer.Option(help="Whether to keep the old frame beside the new one.")] = True,
    trust_order: Annotated[
        bool, typer.Option("--trust-order", help="Accept data, and an order of the chunks, that nothing proves.")
    ] = False,
    as_json: opts.Json = False,
    progress: opts.Progress = None,
    storage: opts.Storage = None,
) -> int:
    """Make frames readable as far as their chunks are intact."""
    done = repairing.repair(
        url,
        dry_run=dry_run,
        backup=backup,
        trust_order=trust_order,
        storage_options=opts.storage_options(storage),
        progress=opts.shows(progress),
    )
    return _show(done, as_json)


@_command
def vacuum(
    url: opts.Url,
    grace: opts.Grace = "24h",
    dry_run: opts.DryRun = False,
    as_json: opts.Json = False,
    storage: opts.Storage = None,
) -> int:
    """Remove old files that no commit refers to."""
    options = opts.storage_options(storage)
    return _show(vacuuming.vacuum(url, grace=grace, dry_run=dry_run, storage_options=options), as_json)


@_command
def repack(
    url: opts.Url,
    dry_run: opts.DryRun = False,
    as_json: opts.Json = False,
    progress: opts.Progress = None,
    storage: opts.Storage = None,
) -> int:
    """Rewrite frames without their dead space."""
    options = opts.storage_options(storage)
    done = vacuuming.repack(url, dry_run=dry_run, storage_options=options, progress=opts.shows(progress))
    return _show(done, as_json)


@_command
def cache(
    directory: Annotated[
        str | None, typer.Argument(metavar="DIRECTORY", help="The directory; by default B2ARRAY_DISK_CACHE.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all that it keeps.")] = False,
    as_json: opts.Json = False,
) -> int:
    """Show or clear the cache on disk for bytes from servers."""
    setting = directory or config.disk_cache
    if setting is None:
        _print(as_json, {"directory": None}, ["no cache: set B2ARRAY_DISK_CACHE to a directory"])
        return OK
    about = describing.describe_cache(setting, clear=clear)
    _print(as_json, about.typed, describing.lines(about.rows))
    return OK


# Snapshots.


def _keeper(
    url: str,
    options: Mapping[str, Any],
    mode: Literal["r", "r+"] = "r",
) -> NDArray | SChunk | Group:
    """Open an object that can have snapshots: an array, a super-chunk or a group."""
    kind, _ = find(url, None, options, exists=True)
    require_frames(kind, url)
    opened: NDArray | SChunk | Group = addressing.open(url, mode, storage_options=options)
    return opened


@_command
def log(url: opts.Url, as_json: opts.Json = False, storage: opts.Storage = None) -> int:
    """List the snapshots of an array or a group, the oldest first."""
    with _keeper(url, opts.storage_options(storage)) as source:
        listed = source.snapshots
    lines = repr(listed).splitlines() if listed else [f"{redact_url(url)} has no snapshots"]
    data = [asdict(each) | {"time": each.time.isoformat()} for each in listed]
    _print(as_json, data, lines)
    damaged = [each.error for each in listed if each.error]
    for error in damaged:
        _complain(error)
    return CORRUPT if damaged else OK


@_command
def snapshot(
    url: opts.Url,
    name: opts.SnapshotName,
    message: Annotated[str, typer.Option("-m", "--message", metavar="TEXT", help="A remark on it.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace a snapshot of this name.")] = False,
    storage: opts.Storage = None,
) -> None:
    """Keep the current state of an array or a group under a name."""
    with _keeper(url, opts.storage_options(storage), "r+") as target:
        target.snapshot(name, message, replace=replace)


@_command
def restore(url: opts.Url, name: opts.SnapshotName, storage: opts.Storage = None) -> None:
    """Go back to a snapshot; all snapshots stay."""
    with _keeper(url, opts.storage_options(storage), "r+") as target:
        target.restore(name)


@_command
def drop(url: opts.Url, name: opts.SnapshotName, storage: opts.Storage = None) -> None:
    """Forget a snapshot; repack or vacuum then free its space."""
    with _keeper(url, opts.storage_options(storage), "r+") as target:
        target.drop_snapshot(name)


@_command
def expire(
    url: opts.Url,
    older_than: opts.OlderThan = None,
    keep_last: Annotated[
        int | None, typer.Option("--keep-last", metavar="N", min=0, help="Keep the newest N, whatever their age.")
    ] = None,
    dry_run: opts.DryRun = False,
    as_json: opts.Json = False,
    storage: opts.Storage = None,
) -> None:
    """Forget old snapshots; repack or vacuum then free their space."""
    options = opts.storage_options(storage)
    if older_than is None and keep_last is None:
        raise typer.BadParameter("say which snapshots are old", param_hint="--older-than or --keep-last")
    kind, _ = find(url, None, options, exists=True)
    require_frames(kind, url)
    dropped = expiring.expire(url, older_than=older_than, keep_last=keep_last, dry_run=dry_run, storage_options=options)
    verb = "would drop" if dry_run else "dropped"
    _print(as_json, dropped, [f"{redact_url(url)}: {verb} {', '.join(dropped) or 'nothing'}"])


@_command
def diff(
    url: opts.Url,
    name: Annotated[
        str, typer.Argument(metavar="NAME|URL", help="A snapshot, or the path or URL of another array or group.")
    ],
    other: Annotated[str | None, typer.Argument(metavar="OTHER", help="A later snapshot; by default, now.")] = None,
    as_json: opts.Json = False,
    storage: opts.Storage = None,
    src_storage: opts.SrcStorage = None,
    dst_storage: opts.DstStorage = None,
) -> int:
    """Show the changes since a snapshot, or between two places."""
    options, others = opts.both_options(storage, src_storage, dst_storage)
    if other is None and _is_place(url, name, options):
        listed = list(comparing.differences(url, name, options, others))
        rows = [(each.name or "/", each.what, each.detail) for each in listed]
        lines = text_tables.text_table(rows, "<<<") if rows else ["no difference"]
        _print(as_json, [each._asdict() for each in listed], lines)
        return ERROR if listed else OK
    with _keeper(url, options) as source:
        if isinstance(source, SChunk):
            raise UnsupportedError(f"{source.url} is a super-chunk: diff compares arrays and groups")
        changes = source.diff(name, other)
    _print(as_json, describing.difference(changes), describing.difference_lines(changes))
    return OK


def _is_place(url: str, name: str, options: Mapping[str, Any]) -> bool:
    """Return whether a word refers to a location rather than a snapshot."""
    looks_like_place = "://" in name or os.path.lexists(name.partition("#")[0])
    if not looks_like_place and by_ending(name)[0] is None:
        return False
    kind, _ = find(url, None, options, exists=True)
    if kind.name not in _FRAMES:
        return True
    with _keeper(url, options) as source:
        return name not in [each.name for each in source.snapshots]


# Changes of members and attributes.


@_command
def rm(
    url: opts.Url,
    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="Also a group in a group.")] = False,
    storage: opts.Storage = None,
) -> None:
    """Remove a member of a group, or an array outside groups."""
    _say(member_commands.remove(url, opts.storage_options(storage), recursive=recursive))


@_command
def mv(src: opts.Src, dst: opts.Dst, storage: opts.Storage = None) -> None:
    """Rename a member within its group."""
    _say(member_commands.rename(src, dst, opts.storage_options(storage)))


@_command
def attrs(
    url: opts.Url,
    assigned: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set an attribute; the value is JSON or text."),
    ] = None,
    removed: Annotated[list[str] | None, typer.Option("--unset", metavar="NAME", help="Remove an attribute.")] = None,
    as_json: opts.Json = False,
    at: opts.At = None,
    storage: opts.Storage = None,
) -> None:
    """Show, set or remove attributes of an array or a group."""
    options = opts.storage_options(storage)
    if assigned or removed:
        if at is not None:
            raise typer.BadParameter("a snapshot can only be read", param_hint="--at")
        try:
            values = member_commands.assignments(assigned or ())
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--set") from None
        member_commands.set_attributes(url, options, values, removed or ())
    current = member_commands.attributes(url, options, at)
    lines = repr(text_tables.Info(current)).splitlines() if current else [f"{redact_url(url)} has no attributes"]
    _print(as_json, current, lines)


@_command
def demo() -> None:
    """Demonstrate b2array in ten seconds."""
    demonstration.main()
