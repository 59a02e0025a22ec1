"""The arguments and options of the command line, and how to parse them."""

from __future__ import annotations

import ast
import functools
import glob
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Annotated, Any, TypeVar, get_args

import typer

from b2array.bloscpack.blp_header import CHECKSUMS
from b2array.codec.cparams import AUTO, CParams
from b2array.errors import B2ArrayError
from b2array.exchange.places import FORMATS
from b2array.grid import chunking
from b2array.group import addressing
from b2array.group.group import open_group
from b2array.tools.vacuum import in_seconds

__all__ = [
    "CODECS",
    "AbsoluteError",
    "Access",
    "At",
    "Checksum",
    "Clevel",
    "Codec",
    "DryRun",
    "Dst",
    "DstStorage",
    "Extents",
    "Filters",
    "Grace",
    "Json",
    "Keepbits",
    "Layout",
    "Name",
    "OlderThan",
    "Overwrite",
    "Progress",
    "RelativeError",
    "SnapshotName",
    "Snapshots",
    "Src",
    "SrcStorage",
    "Storage",
    "Url",
    "Verify",
    "age_of",
    "both_options",
    "complete_snapshot",
    "complete_url",
    "cparams_of",
    "error_text",
    "key_of",
    "one_of",
    "one_of_words",
    "shows",
    "storage_options",
    "take_cparams",
    "with_options",
]


R = TypeVar("R")


def one_of_words(*words: str) -> Callable[[str], list[str]]:
    """Return a function that completes a word from a list."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def complete_url(incomplete: str) -> list[str]:
    """Complete a local path, or the name of a member after the path of a group."""
    match = _GROUP.fullmatch(incomplete)
    if match is None or not os.path.lexists(match["group"]):
        paths = sorted(glob.glob(f"{glob.escape(incomplete)}*"))  # noqa: PTH207 - keeps what the user typed
        return [f"{path}/" if os.path.isdir(path) else path for path in paths]  # noqa: PTH112 - as above
    try:
        with open_group(match["group"]) as group:
            names = [name for name, _ in group.walk()]
    except (B2ArrayError, OSError):  # there is nothing to suggest
        return []
    prefix = f"{match['group']}{match['mark']}"
    return [f"{prefix}{name}" for name in names if name.startswith(match["name"])]


def complete_snapshot(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a snapshot of the array or group in the preceding arguments."""
    url = ctx.params.get("url") or ctx.params.get("src")
    try:
        with addressing.open(str(url)) as opened:
            names = [each.name for each in opened.snapshots]
    except (B2ArrayError, OSError, ValueError):  # there is nothing to suggest
        return []
    return [name for name in names if name.startswith(incomplete)]


_GROUP = re.compile(r"(?P<group>.+?[.]b2[dz])(?P<mark>[/#])(?P<name>.*)", re.DOTALL)

Url = Annotated[
    str,
    typer.Argument(metavar="URL", help="A path, or a URL that fsspec understands.", autocompletion=complete_url),
]
Src = Annotated[str, typer.Argument(metavar="SRC", help="File or URL to read.", autocompletion=complete_url)]
Dst = Annotated[str, typer.Argument(metavar="DST", help="File or URL to write.", autocompletion=complete_url)]
Storage = Annotated[
    list[str] | None,
    typer.Option("--storage", metavar="KEY=VALUE", help="A storage option for fsspec; the value may be JSON."),
]
SrcStorage = Annotated[
    list[str] | None,
    typer.Option("--src-storage", metavar="KEY=VALUE", help="A storage option of SRC alone."),
]
DstStorage = Annotated[
    list[str] | None,
    typer.Option("--dst-storage", metavar="KEY=VALUE", help="A storage option of DST alone."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]
Verify = Annotated[bool, typer.Option("--verify", help="Read both files afterwards and compare them.")]
Progress = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show a progress bar; by default on a terminal.")
]
CODECS = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
Codec = Annotated[
    str | None, typer.Option(help="blosclz, lz4, lz4hc, zlib or zstd.", autocompletion=one_of_words(*CODECS))
]
Clevel = Annotated[int | None, typer.Option(min=0, max=9, help="Compression level.")]
Filters = Annotated[
    str | None,
    typer.Option(help="Filters in order, separated by commas; none: no filter; auto: what suits each chunk."),
]
AbsoluteError = Annotated[
    float | None, typer.Option(metavar="X", help="How far a stored float may be from the given one.")
]
RelativeError = Annotated[float | None, typer.Option(metavar="X", help="The same, as a share of the given float.")]
Keepbits = Annotated[int | None, typer.Option(metavar="N", help="How many bits of the mantissa of floats to keep.")]

Tolerance = Annotated[
    float | None, typer.Option(metavar="X", help="The same, for the codec zfp, which this option chooses.")
]

_COMPRESSION: dict[str, Any] = {
    "codec": Codec,
    "clevel": Clevel,
    "filters": Filters,
    "absolute_error": AbsoluteError,
    "relative_error": RelativeError,
    "keepbits": Keepbits,
    "tolerance": Tolerance,
}
"""The compression options, which are the parameters of `cparams_of`."""

_LONGEST = 1000
_EXPECTED = "expected integers, slices, ..., None, lists of integers or names of fields, as in [0:3, ::-1]"


def extents(text: str) -> tuple[int, ...]:
    """Parse extents, separated by commas."""
    try:
        parts = text.strip("()[] ").split(",")
        return tuple(int(part) for part in parts if part.strip())
    except ValueError:
        raise typer.BadParameter(f"expected integers separated by commas, got {text!r}") from None


def one_of(*names: str) -> Callable[[str], str]:
    """Return a function that parses a word from a list."""

    def parse(text: str) -> str:
        if text not in names:
            raise typer.BadParameter(f"expected one of {', '.join(names)}, got {text!r}")
        return text

    return parse


def age_of(text: str) -> float:
    """Parse an age; return it in seconds."""
    try:
        is_number = text.replace(".", "", 1).isdigit()
        return in_seconds(float(text) if is_number else text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="NAME", help="A snapshot, instead of the latest state.", autocompletion=complete_snapshot
    ),
]
SnapshotName = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of a snapshot.", autocompletion=complete_snapshot)
]
Snapshots = Annotated[bool, typer.Option(help="Whether to copy the snapshots as well.")]
Extents = Annotated[Any, typer.Option(metavar="N,N,...", help="Extents in items.", parser=extents)]
Access = Annotated[
    Any,
    typer.Option(
        metavar="KIND",
        help="Choose chunks and blocks for: balanced (every direction), planes, series or boxes.",
        parser=one_of(*get_args(chunking.Access)),
    ),
]
Layout = Annotated[
    Any,
    typer.Option(
        metavar="KIND",
        help="contiguous (a file), sparse (a directory), or auto.",
        parser=one_of("auto", "contiguous", "sparse"),
        autocompletion=one_of_words("auto", "contiguous", "sparse"),
    ),
]
Name = Annotated[
    Any,
    typer.Option(
        metavar="NAME", help=f"{', '.join(FORMATS)}; by default known from the ending.", parser=one_of(*FORMATS)
    ),
]
Checksum = Annotated[Any, typer.Option(metavar="NAME", help=", ".join(CHECKSUMS), parser=one_of(*CHECKSUMS))]
Grace = Annotated[
    Any,
    typer.Option(metavar="AGE", help="How old a file must be: 90s, 30min, 24h, 7d, or seconds.", parser=age_of),
]
OlderThan = Annotated[
    Any,
    typer.Option(
        "--older-than",
        metavar="AGE",
        help="Drop those of this age or more: 90s, 30min, 24h, 7d, or seconds.",
        parser=age_of,
    ),
]


def storage_options(storage: Sequence[str] | None) -> dict[str, Any]:
    """Parse storage options, given as KEY=VALUE."""
    options: dict[str, Any] = {}
    for entry in storage or ():
        name, equals, value = entry.partition("=")
        if not equals:
            raise typer.BadParameter(f"expected KEY=VALUE, got {entry!r}", param_hint="--storage")
        try:
            options[name] = json.loads(value)
        except ValueError:
            # Text needs no quotation marks, because shells would remove them.
            options[name] = value
    return options


def both_options(
    storage: Sequence[str] | None,
    src: Sequence[str] | None,
    dst: Sequence[str] | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the storage options of source and destination, each with the shared options."""
    common = storage_options(storage)
    return common | storage_options(src), common | storage_options(dst)


def cparams_of(
    codec: str | None,
    clevel: int | None,
    filters: str | None,
    absolute_error: float | None = None,
    relative_error: float | None = None,
    keepbits: int | None = None,
    tolerance: float | None = None,
) -> CParams | None:
    """Return the compression parameters, or None if no option sets one."""
    if tolerance is not None and codec is None:
        codec = "zfp"
    params: dict[str, Any] = {"codec": codec, "clevel": clevel}
    if filters == AUTO:
        params["filters"] = AUTO
    elif filters is not None:
        names = [part.strip() for part in filters.split(",")]
        params["filters"] = tuple(name for name in names if name not in ("", "none"))
    bounds = {
        "absolute_error": absolute_error,
        "relative_error": relative_error,
        "keepbits": keepbits,
        "tolerance": tolerance,
    }
    params = {name: value for name, value in (params | bounds).items() if value is not None}
    if not params:
        return None
    try:
        return CParams(**params)
    except ValueError as error:
        hint = "--codec, --clevel, --filters or the error"
        raise typer.BadParameter(str(error), param_hint=hint) from None


def take_cparams(verb: Callable[..., R]) -> Callable[..., R]:
    """Add the compression options to a command; the function receives them as `cparams`."""
    # Typer reads the signature, so the options replace `cparams` there.
    signature = inspect.signature(verb, eval_str=True)
    own = signature.parameters
    at = list(own).index("cparams")
    parameters = [each for name, each in own.items() if name != "cparams"]
    kind = own["cparams"].kind
    for place, (name, annotation) in enumerate(_COMPRESSION.items(), at):
        parameter = inspect.Parameter(name, kind, default=None, annotation=annotation)
        parameters.insert(place, parameter)

    @functools.wraps(verb)
    def run(**options: Any) -> R:
        compression = {name: options.pop(name, None) for name in _COMPRESSION}
        return verb(cparams=cparams_of(**compression), **options)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def shows(progress: bool | None) -> bool:
    """Return whether to show progress; the default is to show it on a terminal."""
    return sys.stderr.isatty() if progress is None else progress


_TELLING = (B2ArrayError, OSError, ValueError, TypeError, LookupError, ArithmeticError)
"""The program prints these errors without the names of their types."""
_ASSIGNED = re.compile(
    r"\b(overwrite|replace|trust_order|dry_run|follow_external|grace|layout|zarr_format)=(\w+|'\w+')",
)
_NAMED = re.compile(r"\b(src_format|dst_format|storage_options)\b")


def error_text(error: Exception) -> str:
    """Return the message of an error on one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    # The text of a KeyError has quotation marks around it.
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    line = " ".join(str(text).split()) or type(error).__name__
    if not isinstance(error, _TELLING):
        line = f"{type(error).__name__}: {line}"
    return with_options(line)


def with_options(text: str) -> str:
    """Replace Python keywords in a text with command-line options.

    Examples
    --------
    >>> with_options("x exists; overwrite=True replaces it"), with_options("only grace=0 is possible")
    ('x exists; --overwrite replaces it', 'only --grace 0 is possible')
    """

    def option(match: re.Match[str]) -> str:
        name = "--" + match[1].removesuffix("_options").replace("_", "-")
        if match.re is _NAMED or match[2] == "True":
            return name
        return f"{name} {match[2]}"

    return _ASSIGNED.sub(option, _NAMED.sub(option, text))


def key_of(text: str) -> Any:
    """Parse a NumPy index, with or without brackets, without executing code.

    Examples
    --------
    >>> key_of("[0:3, ::-1]")
    (slice(0, 3, None), slice(None, None, -1))
    >>> key_of("..., -1, [2, 0], 'x'")
    (Ellipsis, -1, [2, 0], 'x')
    """
    inner = text.strip()
    if len(inner) > _LONGEST:
        raise ValueError(f"{_EXPECTED}, got {len(inner)} characters")
    bracketed = f"_[{inner}]"
    try:
        body = _parse(f"_{inner}" if inner.startswith("[") else bracketed)
        # Without brackets, a list and the text after it look like two subscripts.
        if not _is_one_subscript(body):
            body = _parse(bracketed)
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        raise ValueError(f"{_EXPECTED}, got {text!r}") from None
    match body:
        case ast.Subscript(value=ast.Name(), slice=key):
            return _value(key, text)
    raise ValueError(f"{_EXPECTED}, got {text!r}")


def _parse(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def _is_one_subscript(body: ast.expr) -> bool:
    return isinstance(body, ast.Subscript) and isinstance(body.value, ast.Name)


def _value(node: ast.expr, text: str) -> Any:
    match node:
        case ast.Tuple(elts=entries):
            return tuple(_value(entry, text) for entry in entries)
        case ast.List(elts=entries):
            return [_value(entry, text) for entry in entries]
        case ast.Slice(lower=lower, upper=upper, step=step):
            edges = [None if part is None else _value(part, text) for part in (lower, upper, step)]
            if all(isinstance(edge, int | None) for edge in edges):
                return slice(*edges)
        case ast.Constant(value=bool() | int() | str() | None | EllipsisType() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
    raise ValueError(f"{_EXPECTED}, got {text!r}")
