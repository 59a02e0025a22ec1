"""What the formats that `b2array.convert` knows have in common: arrays to be read, places to be written to."""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from b2array.codec.cparams import CParams
from b2array.errors import UnsupportedError
from b2array.store.open import open_store
from b2array.store.secrets import redact

__all__ = [
    "Box", "Format", "Piece", "Settings", "Source", "Storage", "json_attrs", "local_copy", "only", "refuse_objects",
    "require",
]  # fmt: skip

Box = tuple[slice, ...]
Piece = tuple[Box, npt.NDArray[Any]]
Storage = Mapping[str, Any] | None


@dataclass(frozen=True)
class Source:
    """An array that is to be read box by box. `chunks` and `blocks` are None where the format has none."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[Box], npt.NDArray[Any]]
    chunks: tuple[int, ...] | None = None
    blocks: tuple[int, ...] | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    dims: tuple[str | None, ...] | None = None
    fill_value: Any = 0
    resources: ExitStack = field(default_factory=ExitStack)

    @property
    def fill(self) -> Any:
        """The fill value as an item of the type."""
        item = np.zeros((), self.dtype)
        if not (isinstance(self.fill_value, int) and self.fill_value == 0):
            item[()] = self.fill_value
        return item[()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resources.close()


class Settings(NamedTuple):
    """How the destination is to be made."""

    chunks: tuple[int, ...]
    blocks: tuple[int, ...] | None
    cparams: CParams | None
    layout: Any
    overwrite: bool
    storage_options: Storage
    options: Mapping[str, Any]


class Format(NamedTuple):
    """What is done with files of one format.

    `open` opens a source. `check` raises for an array that the format cannot hold, before anything is written. `write`
    makes a destination from pieces; where `sequential`, these follow each other in C order.
    """

    name: str
    suffixes: tuple[str, ...]
    open: Callable[[str, Storage], Source]
    check: Callable[[Source, Settings], None]
    write: Callable[[str, Source, Iterable[Piece], Settings], None]
    sequential: bool
    keeps: frozenset[str] = frozenset({"attrs", "dims", "fill value"})


def require(module: str, extra: str, what: str) -> ModuleType:
    """Import an optional package.

    Raises
    ------
    UnsupportedError
        It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UnsupportedError(f"{what} needs the package {module}: pip install 'b2array[{extra}]'") from None


def refuse_objects(source: Source, _: Settings) -> None:
    """Raise UnsupportedError for items that are Python objects."""
    if source.dtype.hasobject:
        raise UnsupportedError(f"items of type {source.dtype} are Python objects, which have no bytes of their own")


@contextmanager
def local_copy(url: str, storage_options: Storage) -> Iterator[str]:
    """Give the path of a file's content: its own if it is local, else that of a copy."""
    store = open_store(url, storage_options=storage_options)
    if store.temporary("") is not None:
        store.stamp("")
        yield store.url
        return
    with tempfile.TemporaryDirectory(prefix="b2array-") as directory:
        path = Path(directory, "file")
        with path.open("wb") as file:
            file.writelines(store.pieces())
        yield str(path)


def only(found: Mapping[str, Any], url: str) -> Any:
    """Return the only array of a file; ValueError if there are others, or none."""
    if len(found) != 1:
        names = ", ".join(found) or "none"
        raise ValueError(f"{redact(url)} holds several arrays, or none: name one of {names}")
    return next(iter(found.values()))


def json_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as JSON takes them: NumPy's values as Python's, tuples as lists."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(attrs), default=_plain))
    except (TypeError, ValueError) as error:
        raise TypeError(f"an attribute cannot be written as JSON: {error}") from None
    return plain


def _plain(value: object) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufU":
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no type of JSON")
