"""Keywords of public functions: signatures list every keyword, and errors about a wrong keyword suggest the right one.

Many functions pass on the options of new arrays. A type checker reads their names and types from a `TypedDict`, and
`spell_out` puts them into the signature that `help`, notebooks and the reference show.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from types import ModuleType
from typing import Any, ForwardRef, NoReturn, TypeVar, cast

import numpy as np

__all__ = ["F", "nearest", "refuse_calls", "renamed", "spell_out", "suggest"]

F = TypeVar("F", bound=Callable[..., Any])

_COMPRESSION = "write cparams='lz4', or cparams=b2array.CParams('zstd', clevel=5)"
_PLACE = "the place is given as url"
_TWO_STORES = "write src_options= or dst_options= for storage options, src_fs= or dst_fs= for a file system"
_STORAGE = "write storage_options={{{name!r}: ...}}"
_GROWS = "every array can grow, see resize and append"
_MODE = "overwrite=True replaces an array that is there; b2array.open takes modes"
_MERGED = "leave it out, because writes to parts of a chunk are merged"
_CONSOLIDATED = "leave it out; group.consolidate() prepares a group for a web server, and other stores need nothing"
_NEEDLESS = ("", "leave it out, because commits are atomic, and chunks of the fill value take no space")
_FILES = "layout='sparse' stores a directory with a file for each chunk"

_NEIGHBOURS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("anon", "account_key", "account_name", "client_kwargs", "endpoint_url", "key", "profile", "secret", "token"),
        ("storage_options", _STORAGE),
    ),
    **dict.fromkeys(
        (
            "clevel",
            "codec",
            "codecs",
            "complevel",
            "compression",
            "compression_level",
            "compression_opts",
            "compressor",
            "compressors",
            "filters",
            "shuffle",
            "zlib",
        ),
        ("cparams", _COMPRESSION),
    ),
    **dict.fromkeys(("file", "filename", "fname", "path", "urlpath", "store"), ("url", _PLACE)),
    **dict.fromkeys(("dim_names", "dimension_names"), ("dims", "write dims=")),
    **dict.fromkeys(("attributes", "vlmeta"), ("attrs", "write attrs=, as in attrs={{'title': 'ERA5'}}")),
    **dict.fromkeys(("chunk_shape", "chunkshape"), ("chunks", "write chunks=")),
    **dict.fromkeys(("block_shape", "blockshape"), ("blocks", "write blocks=")),
    **dict.fromkeys(("maxshape", "resizable"), ("chunks", _GROWS)),
    "contiguous": ("layout", "write layout='contiguous', or layout='sparse'"),
    "data": ("shape", "b2array.asarray stores values"),
    "fillvalue": ("fill_value", "write fill_value="),
    "metadata": ("attrs", "write attrs=; meta= is for metalayers, which never change"),
    "mode": ("overwrite", _MODE),
    "name": ("url", _PLACE),
    **dict.fromkeys(("filesystem", "fs", "storage_options"), ("dst_options", _TWO_STORES)),
    **dict.fromkeys(("new_shape", "newshape", "size"), ("shape", "write shape=")),
    "order": ("chunks", "items are stored in C order"),
    "refcheck": ("shape", "leave it out, because views and other handles see the new shape"),
    **dict.fromkeys(("zarr_format", "zarr_version"), ("", "arrays are stored in the format of Blosc2")),
    **dict.fromkeys(("cache_attrs", "cache_metadata", "chunk_store", "synchronizer", "write_empty_chunks"), _NEEDLESS),
    **dict.fromkeys(("consolidated", "use_consolidated"), ("", _CONSOLIDATED)),
    **dict.fromkeys(("align_chunks", "safe_chunks"), ("", _MERGED)),
    "meta_array": ("", "leave it out, because every result is an array of NumPy"),
    "overwrite": ("", "mode='w' of open and open_group replaces what is there; del group[name] removes a member"),
    **dict.fromkeys(
        ("chunk_key_encoding", "dimension_separator"),
        ("", _FILES),
    ),
    "object_codec": ("", "arrays of objects cannot be stored: use text, bytes, records, or two arrays for ragged rows"),
    "serializer": ("cparams", _COMPRESSION),
    "config": ("", "b2array.config has the settings"),
    "write_data": ("", "leave it out, because b2array.create writes no values, and b2array.asarray stores them"),
    "swmr": ("", "readers and writers need no mode: every commit is complete for readers"),
    "libver": ("", "there is one version of the format"),
    "shards": ("chunks", "chunks= says how much is stored at once, blocks= how much of it is read alone"),
}
"""The names of arguments in other libraries: for each, the keyword that the function must have, and a suggestion. Some
suggestions, with "" in place of the keyword, fit all functions."""


def spell_out(kind: type | None = None, defaults: Mapping[str, Any] | None = None) -> Callable[[F], F]:
    """List the keywords of a function in its signature, and reject other keywords with a hint.

    Parameters
    ----------
    kind : type, optional
        The `TypedDict` of the function's ``**options``.
    defaults : mapping, optional
        The defaults of the keywords, in the order of the signature.

    Examples
    --------
    >>> from typing import TypedDict, Unpack
    >>> class Options(TypedDict, total=False):
    ...     chunks: int
    >>> @spell_out(Options, {"chunks": 1})
    ... def make(shape, **options: Unpack[Options]): ...
    >>> list(inspect.signature(make).parameters)
    ['shape', 'chunks']
    >>> make(3, chunk=4)
    Traceback (most recent call last):
    TypeError: make() got an unexpected keyword argument 'chunk'. Did you mean 'chunks'?
    """
    options = [] if kind is None else list(_options(kind, defaults or {}))

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind != each.VAR_KEYWORD]
        complete = signature.replace(parameters=[*own, *options])
        unnamed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
        named = [each for each in complete.parameters.values() if each.kind not in unnamed]
        names = frozenset(each.name for each in named)
        takes_any_number = any(each.kind == each.VAR_POSITIONAL for each in own)
        most = sys.maxsize if takes_any_number else sum(each.kind != each.KEYWORD_ONLY for each in own)

        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            # Two comparisons only: this runs in every call of a public function.
            if not names.issuperset(keywords) or len(args) > most:
                raise TypeError(_complain(function.__name__, complete, args, keywords))
            return function(*args, **keywords)

        call.__signature__ = complete  # type: ignore[attr-defined]
        return cast(F, call)

    return decorate


def renamed(function: F, name: str) -> F:
    """Return a method under another name, which errors about its arguments then use.

    Examples
    --------
    >>> class Shelf:
    ...     def put(self, book): ...
    ...
    ...     store = renamed(put, "store")
    >>> Shelf().store(1, title=2)
    Traceback (most recent call last):
    TypeError: store() got an unexpected keyword argument 'title'
    """

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        return function(*args, **keywords)

    call.__qualname__ = f"{function.__qualname__.rpartition('.')[0]}.{name}"
    call.__name__ = name
    return cast(F, spell_out()(call))


def _options(kind: type, defaults: Mapping[str, Any]) -> Iterator[inspect.Parameter]:
    types = kind.__annotations__
    # The keywords have the order of the documentation. Options without defaults are only for type checkers.
    documented = [name for name in defaults if name in types]
    others = [name for name in types if name not in defaults]
    for name in documented + others:
        annotated = types[name]
        annotation = annotated.__forward_arg__ if isinstance(annotated, ForwardRef) else annotated
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=annotation)


def _complain(
    function: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> str:
    """Return an error message that names the wrong argument, as Python does, with a suggestion."""
    parameters = signature.parameters
    wrong = next((name for name in keywords if name not in parameters), None)
    if wrong is not None:
        return f"{function}() got an unexpected keyword argument {wrong!r}{suggest(wrong, parameters)}"
    positional = [each.name for each in parameters.values() if each.kind != each.KEYWORD_ONLY]
    others = [each.name for each in parameters.values() if each.kind == each.KEYWORD_ONLY]
    values = args
    if positional[:1] == ["self"]:
        # The caller of a method does not count `self`.
        positional = positional[1:]
        values = args[1:]
    extra = values[len(positional)]
    if "dtype" in others and _is_dtype(extra):
        advice = f"dtype={extra!r}"
    elif "url" in others and isinstance(extra, str | os.PathLike):
        advice = f"url={os.fspath(extra)!r}"
    else:
        advice = ", ".join(f"{name}=" for name in others[:4])
    arguments = "argument" if len(positional) == 1 else "arguments"
    return f"{function}() takes {len(positional)} positional {arguments} but {len(values)} were given; write {advice}"


def _is_dtype(value: Any) -> bool:
    try:
        np.dtype(value)
    except (TypeError, ValueError):
        return False
    return value is not None


def suggest(name: str, names: Collection[str]) -> str:
    """Return the end of an error message for a keyword that is not among `names`: what to write instead, or "".

    Examples
    --------
    >>> suggest("chunk", ["chunks", "cparams"]), suggest("complevel", ["cparams"])
    (". Did you mean 'chunks'?", ": write cparams='lz4', or cparams=b2array.CParams('zstd', clevel=5)")
    """
    needed, sentence = _NEIGHBOURS.get(name, ("", ""))
    if sentence and (not needed or needed in names):
        return f": {sentence.format(name=name)}"
    return nearest(name, names)


_MOST_NAMES = 10_000
"""The maximum number of names to compare, which takes tenths of a second."""


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the end of an error message for a name that does not exist: a question with the most similar name, or "".

    Examples
    --------
    >>> nearest("tiem", ["depth", "time"]), nearest("x", ["time"])
    (". Did you mean 'time'?", '')
    """
    close = difflib.get_close_matches(name, islice(names, _MOST_NAMES), 1)
    return f". Did you mean {close[0]!r}?" if close else ""


# Packages that share the name of a function in another library.


class _Package(ModuleType):
    # Python's own error for the call of a module says only that modules are not callable.
    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(f"{self.__name__} is a package: {_PACKAGES[self.__name__]}")


_PACKAGES: dict[str, str] = {}


def refuse_calls(package: str, hint: str) -> None:
    """Make calls of an imported package raise an error that names the right function."""
    _PACKAGES[package] = hint
    sys.modules[package].__class__ = _Package
