"""The program `b2array`: its commands and exit codes. Nothing else imports this module."""

from __future__ import annotations

import functools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import numpy as np
import typer

from b2array import bloscpack
from b2array.array import creation, opening
from b2array.array.array import NDArray
from b2array.array.placing import place_new
from b2array.bloscpack.header import CHECKSUMS
from b2array.engine import snapshot, transaction
from b2array.engine.handle import Handle
from b2array.errors import B2ArrayError, FormatError
from b2array.group.group import open_group
from b2array.progress import track
from b2array.store.atomic import AtomicFile, require_free
from b2array.store.open import open_store
from b2array.tools import bench as measuring
from b2array.tools import demo as demonstration
from b2array.tools import describing
from b2array.tools import repair as repairing
from b2array.tools import vacuum as vacuuming
from b2array.tools import verify as verifying
from b2array.tools.convert import convert as converting
from b2array.tools.convert import find, is_array, pack_bytes, save_intact, unpack_bytes
from b2array.tools.options import (  # fmt: skip
    Clevel,
    Codec,
    DryRun,
    Dst,
    Extents,
    Filters,
    Json,
    Layout,
    Name,
    Overwrite,
    Progress,
    Src,
    Storage,
    Url,
    Verify,
    age_of,
    cparams_of,
    extents,
    format_name,
    key_of,
    layout_kind,
    shows,
    storage_options,
)

__all__ = ["app", "main"]

P = ParamSpec("P")

OK, ERROR, USAGE, CORRUPT = 0, 1, 2, 3

# Some versions of Typer import Click, others contain a copy of it.
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
        print(metadata.version("b2array"))
        raise typer.Exit


_VERSION = typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)


@app.callback()
def _options(*, version: Annotated[bool, _VERSION] = False) -> None:
    pass


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; see `b2array.__main__.main`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with warnings.catch_warnings():
        setattr(warnings, "showwarning", _warn)  # noqa: B010 - a simpler signature does
        warnings.simplefilter("always", UserWarning)
        try:
            return _code(app(args=arguments, prog_name="b2array", standalone_mode=False))
        except SystemExit as end:
            return _code(end.code)
        except typer.Abort:
            return ERROR
        except _UsageError as error:
            print(_misunderstood(error) if arguments else error.ctx.get_help(), file=sys.stderr)
            return USAGE


def _code(result: object) -> int:
    return result if isinstance(result, int) else OK


def _misunderstood(error: Any) -> str:
    """Return one line that says what is wrong with the arguments, and names the help."""
    command = "b2array" if error.ctx is None else error.ctx.command_path
    text = " ".join(error.format_message().split()).rstrip(".")
    return f"{command}: {text[:1].lower()}{text[1:]} (see {command} --help)"


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"b2array: {message}", file=sys.stderr)


def _command(name: str) -> Callable[[Callable[P, int | None]], Callable[P, None]]:
    """Make a function a command that reports an error as one line and an exit code."""

    def decorate(verb: Callable[P, int | None]) -> Callable[P, None]:
        @app.command(name)
        @functools.wraps(verb)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                code = verb(*args, **kwargs)
                sys.stdout.flush()
            except BrokenPipeError:
                # The reader of the output closed the pipe. Without this, the interpreter would fail at its exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                code = OK
            except _UsageError:
                raise
            except Exception as error:  # noqa: BLE001 - clients of servers raise many kinds of errors of their own
                print(f"b2array: {_text(error)}", file=sys.stderr)
                code = CORRUPT if isinstance(error, FormatError) else ERROR
            if code:
                raise typer.Exit(code)

        return run

    return decorate


_TELLING = (B2ArrayError, OSError, ValueError, TypeError, LookupError, ArithmeticError)
"""Errors that are shown without the name of their type."""


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    said = " ".join(str(text).split()) or type(error).__name__
    if not isinstance(error, _TELLING):
        said = f"{type(error).__name__}: {said}"
    return said.replace("overwrite=True", "--overwrite")


def _print(data: Any) -> None:
    print(json.dumps(describing.plain(data), indent=2, ensure_ascii=False, allow_nan=False))


def _all(lines: Iterator[str]) -> None:
    for line in lines:
        print(line)


@_command("info")
def info(
    url: Url,
    as_json: Json = False,
    chunks: Annotated[bool, typer.Option("--chunks", help="Sizes, ratios, dead space, a map of the chunks.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Every field of header, index and trailer.")] = False,
    storage: Storage = None,
) -> None:
    """Say what a file is: an array, a super-chunk, a group, or a Bloscpack file."""
    options = storage_options(storage)
    if raw:
        found = list(describing.raw_fields(url, options))
        if as_json:
            _print([each._asdict() for each in found])
            return
        rows = [("part", "offset", "bytes", "field", "value", "meaning")]
        rows += [(f.part, str(f.offset), _hex(f.raw), f.name, str(f.value), f.meaning) for f in found]
        _all(describing.table(rows, "<><<<<"))
        return
    about = describing.describe(url, options)
    sizes = describing.surveyed(url, options) if chunks else None
    if as_json:
        _print(about if sizes is None else about | {"sizes": sizes.data()})
        return
    _all(describing.lines(about))
    if sizes is not None:
        print()
        _all(sizes.lines())


def _hex(raw: bytes) -> str:
    return raw.hex(" ") if len(raw) <= 8 else f"{raw[:7].hex(' ')} ..."


@_command("ls")
def ls(url: Url, as_json: Json = False, storage: Storage = None) -> None:
    """List the members of a group."""
    group = open_group(url, storage_options=storage_options(storage))
    found: dict[str, dict[str, Any]] = {name: {"kind": "group"} for name in group.groups()}
    for name, each in group.arrays().items():
        is_array = isinstance(each, NDArray)
        found[name] = (
            {"kind": "array", "dtype": str(each.dtype), "shape": each.shape} if is_array else {"kind": "chunks"}
        )
    if as_json:
        _print(found)
        return
    rows = [
        (name + "/" * (each["kind"] == "group"), each.get("dtype", ""), str(each.get("shape", "")))
        for name, each in sorted(found.items())
    ]
    _all(describing.table(rows, "<<<") if rows else iter(()))


@_command("tree")
def tree(url: Url, storage: Storage = None) -> None:
    """Draw a group with all its members, also of its groups."""
    print(open_group(url, storage_options=storage_options(storage)).tree())


@_command("cat")
def cat(
    url: Url,
    key: Annotated[str, typer.Argument(help='As between brackets in NumPy: "[0:3, ::-1]".')] = "[...]",
    output: Annotated[str | None, typer.Option("-o", "--output", help="A .npy file to write instead.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Print all items of large results.")] = False,
    overwrite: Overwrite = False,
    storage: Storage = None,
) -> None:
    """Print a part of an array, or write it to a .npy file."""
    try:
        wanted = key_of(key)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="KEY") from None
    options = storage_options(storage)
    store = None if output is None else open_store(output, storage_options=options)
    if store is not None:
        require_free(store, {"": b""}, "a file", overwrite=overwrite)
    kind, address = find(url, None, options, exists=True)
    with kind.open(address, options) as source:
        values = source.read(wanted)
    if store is not None:
        with AtomicFile(store, overwrite=overwrite) as path, Path(path).open("wb") as file:
            np.save(file, values, allow_pickle=False)
        return
    print(np.array2string(np.asarray(values), threshold=sys.maxsize if every else 1000))


@_command("convert")
def convert(
    src: Src,
    dst: Dst,
    src_format: Name = None,
    dst_format: Name = None,
    chunks: Extents = None,
    blocks: Extents = None,
    codec: Codec = None,
    clevel: Clevel = None,
    filters: Filters = None,
    layout: Layout = "auto",
    zarr_format: Annotated[int | None, typer.Option(min=2, max=3, help="2 or 3.")] = None,
    overwrite: Overwrite = False,
    verify: Verify = False,
    progress: Progress = None,
    storage: Storage = None,
) -> None:
    """Copy an array to another format: .b2nd, .npy, .zarr, .h5 or .blp."""
    options = storage_options(storage)
    more = {} if zarr_format is None else {"zarr_format": zarr_format}
    converting(
        src, dst, src_format=format_name(src_format, "--src-format"),
        dst_format=format_name(dst_format, "--dst-format"),
        chunks=extents(chunks, "--chunks"), blocks=extents(blocks, "--blocks"),
        cparams=cparams_of(codec, clevel, filters), layout=layout_kind(layout), overwrite=overwrite, verify=verify,
        progress=shows(progress), src_options=options, dst_options=options, **more,
    )  # fmt: skip


@_command("copy")
def copy(
    src: Src,
    dst: Dst,
    layout: Layout = "auto",
    chunks: Extents = None,
    blocks: Extents = None,
    codec: Codec = None,
    clevel: Clevel = None,
    filters: Filters = None,
    overwrite: Overwrite = False,
    progress: Progress = None,
    storage: Storage = None,
) -> None:
    """Copy an array or super-chunk. Its chunks are copied as they are, unless options ask for others."""
    options = storage_options(storage)
    kind, cut, inner = layout_kind(layout), extents(chunks, "--chunks"), extents(blocks, "--blocks")
    held = snapshot.load(open_store(src, storage_options=options))
    if held.frame.metalayer("b2nd") is None and held.frame.metalayer("caterva") is None:
        store, frame_type = place_new(dst, kind, options, overwrite=overwrite)
        with track(held.frame.nchunks, "chunks copied", shows(progress), unit="items") as shown:
            transaction.copied(held, store, frame_type, overwrite=overwrite, progress=shown).commit()
        return
    a = NDArray(Handle(held, "r"))
    creation.copy(
        a, dst, chunks=cut, blocks=inner, cparams=cparams_of(codec, clevel, filters), layout=kind, overwrite=overwrite,
        progress=shows(progress), storage_options=options,
    ).close()  # fmt: skip


@_command("pack")
def pack(
    src: Src,
    dst: Dst,
    checksum: Annotated[str, typer.Option(help=", ".join(CHECKSUMS))] = "adler32",
    offsets: Annotated[bool, typer.Option(help="Whether to store the offsets of the chunks.")] = True,
    chunk_size: Annotated[int | None, typer.Option(min=1, help="Bytes in a chunk before compression.")] = None,
    codec: Codec = None,
    clevel: Clevel = None,
    filters: Filters = None,
    overwrite: Overwrite = False,
    verify: Verify = False,
    progress: Progress = None,
    storage: Storage = None,
) -> None:
    """Write an array, or the bytes of any other file, to a Bloscpack file (.blp)."""
    if checksum not in CHECKSUMS:
        raise typer.BadParameter(f"expected one of {', '.join(CHECKSUMS)}, got {checksum!r}", param_hint="--checksum")
    options, cparams = storage_options(storage), cparams_of(codec, clevel, filters)
    more: dict[str, Any] = {"checksum": checksum, "offsets": offsets, "chunk_size": chunk_size}
    if is_array(src, options):
        converting(
            src, dst, dst_format="blp", cparams=cparams, overwrite=overwrite, verify=verify,
            progress=shows(progress), src_options=options, dst_options=options, **more,
        )  # fmt: skip
        return
    pack_bytes(
        src, dst, cparams=cparams, overwrite=overwrite, verify=verify, progress=shows(progress),
        storage_options=options, **more,
    )  # fmt: skip


@_command("unpack")
def unpack(
    src: Src,
    dst: Dst,
    partial: Annotated[
        bool, typer.Option("--partial", help="Of a damaged file, write the part before the damage.")
    ] = False,
    overwrite: Overwrite = False,
    verify: Verify = False,
    progress: Progress = None,
    storage: Storage = None,
) -> int | None:
    """Read a Bloscpack file: write its array to another format, or its bytes to a file."""
    options = storage_options(storage)
    with bloscpack.open(src, storage_options=options) as f:
        if partial:
            data, error = f.read_intact()
            save_intact(data, dst, overwrite=overwrite, storage_options=options)
            if error is None:
                return OK
            print(f"b2array: {_text(error)}", file=sys.stderr)
            return CORRUPT
        if f.is_array:
            converting(
                src, dst, src_format="blp", overwrite=overwrite, verify=verify, progress=shows(progress),
                src_options=options, dst_options=options,
            )  # fmt: skip
            return OK
        unpack_bytes(
            f, dst, overwrite=overwrite, verify=verify, progress=shows(progress), storage_options=options
        )  # fmt: skip
    return OK


@_command("bench")
def bench(
    url: Url,
    alternatives: Annotated[bool, typer.Option(help="Also with other chunks and blocks.")] = True,
    as_json: Json = False,
    progress: Progress = None,
    storage: Storage = None,
) -> None:
    """Measure how fast an array is read here, by pattern, and what other chunks and blocks would give."""
    own, others = [], []
    with (
        opening.open(url, storage_options=storage_options(storage)) as a,
        track(None, "measuring", shows(progress), unit="items") as shown,
    ):
        for each in measuring.patterns(a):
            own.append(each)
            shown.advance()
        for each in measuring.alternatives(a) if alternatives else ():
            others.append(each)
            shown.advance()
    if as_json:
        _print({"file": [each._asdict() for each in own], "sample": [each._asdict() for each in others]})
        return
    _all(describing.table(list(measuring.rates(own)), "<>>>"))
    if others:
        print("\nA sample in memory, with other chunks and blocks:\n")
        _all(describing.table(list(measuring.compared(others)), "<<>" + ">" * len(own)))


@_command("verify")
def verify(
    url: Url,
    deep: Annotated[bool, typer.Option("--deep", help="Read, compare and decode all of each chunk.")] = False,
    as_json: Json = False,
    progress: Progress = None,
    storage: Storage = None,
) -> int:
    """Check whether a frame is in order, without changing anything; exit code 3 if it is not."""
    report = verifying.verify(url, deep=deep, storage_options=storage_options(storage), progress=shows(progress))
    if as_json:
        _print(report.to_dict())
    else:
        print(report)
    return OK if report.ok else CORRUPT


@_command("repair")
def repair(
    url: Url,
    dry_run: DryRun = False,
    backup: Annotated[bool, typer.Option(help="Whether to keep the old frame beside the new one.")] = True,
    trust_order: Annotated[
        bool,
        typer.Option(
            "--trust-order", help="Accept data that nothing proves, and without an index the order of the chunks."
        ),
    ] = False,
    as_json: Json = False,
    progress: Progress = None,
    storage: Storage = None,
) -> None:
    """Make a frame readable again, as far as its chunks are intact."""
    done = repairing.repair(
        url, dry_run=dry_run, backup=backup, trust_order=trust_order, storage_options=storage_options(storage),
        progress=shows(progress),
    )  # fmt: skip
    _print(done.to_dict()) if as_json else print(done)


@_command("vacuum")
def vacuum(
    url: Url,
    grace: Annotated[str, typer.Option(help="How old a file must be: 90s, 30min, 24h, 7d, or seconds.")] = "24h",
    dry_run: DryRun = False,
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """Remove old files that no commit refers to: of writers that were killed, or of earlier states."""
    done = vacuuming.vacuum(url, grace=age_of(grace), dry_run=dry_run, storage_options=storage_options(storage))
    _print(done.to_dict()) if as_json else print(done)


@_command("repack")
def repack(
    url: Url, dry_run: DryRun = False, as_json: Json = False, progress: Progress = None, storage: Storage = None
) -> None:
    """Rewrite a contiguous frame without dead space."""
    done = vacuuming.repack(
        url, dry_run=dry_run, storage_options=storage_options(storage), progress=shows(progress)
    )  # fmt: skip
    _print(done.to_dict()) if as_json else print(done)


@_command("demo")
def demo() -> None:
    """Store a small simulation, open it lazily, and read parts of it."""
    demonstration.main()
