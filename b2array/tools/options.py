"""The arguments and options of the command line, and how they are understood."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from b2array.codec.cparams import CParams
from b2array.tools.formats import FORMATS
from b2array.tools.vacuum import in_seconds

__all__ = [
    "Clevel", "Codec", "DryRun", "Dst", "Extents", "Filters", "Json", "Layout", "Name", "Overwrite", "Progress", "Src",
    "Storage", "Url", "Verify", "age_of", "cparams_of", "extents", "format_name", "layout_kind", "shows",
    "storage_options",
]  # fmt: skip

Url = Annotated[str, typer.Argument(metavar="URL", help="A path, or a URL that fsspec understands.")]
Src = Annotated[str, typer.Argument(metavar="SRC", help="What to read.")]
Dst = Annotated[str, typer.Argument(metavar="DST", help="What to write.")]
Storage = Annotated[
    list[str] | None,
    typer.Option("--storage", metavar="KEY=VALUE", help="A storage option for fsspec; the value may be JSON."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
Verify = Annotated[bool, typer.Option("--verify", help="Read both afterwards and compare.")]
Progress = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show how far it is; by default on a terminal.")
]
Codec = Annotated[str | None, typer.Option(help="blosclz, lz4, lz4hc, zlib or zstd.")]
Clevel = Annotated[int | None, typer.Option(min=0, max=9, help="Compression level.")]
Filters = Annotated[str | None, typer.Option(help="Filters in their order, separated by commas; none: no filter.")]
Extents = Annotated[str | None, typer.Option(metavar="N,N,...", help="Extents in items.")]
Layout = Annotated[str, typer.Option(help="contiguous (a file), sparse (a directory), or auto.")]
Name = Annotated[str | None, typer.Option(help=f"{', '.join(FORMATS)}; by default the ending tells.")]


def storage_options(storage: Sequence[str] | None) -> dict[str, Any]:
    """Return the storage options that were given as KEY=VALUE."""
    found: dict[str, Any] = {}
    for entry in storage or ():
        name, equals, value = entry.partition("=")
        if not equals:
            raise typer.BadParameter(f"expected KEY=VALUE, got {entry!r}", param_hint="--storage")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def extents(text: str | None, hint: str) -> tuple[int, ...] | None:
    """Return extents that were given with commas between them."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.strip("()[] ").split(",") if part.strip())
    except ValueError:
        raise typer.BadParameter(f"expected integers separated by commas, got {text!r}", param_hint=hint) from None


def cparams_of(codec: str | None, clevel: int | None, filters: str | None) -> CParams | None:
    """Return how to compress, None if nothing was said about it."""
    if codec is None and clevel is None and filters is None:
        return None
    given: dict[str, Any] = {"codec": codec, "clevel": clevel}
    if filters is not None:
        given["filters"] = tuple(part.strip() for part in filters.split(",") if part.strip() not in ("", "none"))
    try:
        return CParams(**{name: value for name, value in given.items() if value is not None})
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--codec, --clevel or --filters") from None


def shows(progress: bool | None) -> bool:
    """Whether to show progress: if not said, on a terminal."""
    return sys.stderr.isatty() if progress is None else progress


def age_of(text: str) -> float:
    """Return an age in seconds."""
    try:
        return in_seconds(float(text) if text.replace(".", "", 1).isdigit() else text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--grace") from None


def format_name(name: str | None, hint: str) -> Any:
    """Return the name of a format if there is one like that."""
    if name is not None and name not in FORMATS:
        raise typer.BadParameter(f"expected one of {', '.join(FORMATS)}, got {name!r}", param_hint=hint)
    return name


def layout_kind(name: str) -> Any:
    """Return the kind of a frame if there is one like that."""
    if name not in ("auto", "contiguous", "sparse"):
        raise typer.BadParameter(f"expected auto, contiguous or sparse, got {name!r}", param_hint="--layout")
    return name
