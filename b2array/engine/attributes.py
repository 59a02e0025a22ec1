"""The attributes of a frame as a mapping."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Protocol

from b2array.engine.snapshot import Source
from b2array.engine.transaction import Draft
from b2array.errors import located
from b2array.format import extras, frame, notes

__all__ = ["Layers"]


class _Holder(Protocol):
    @property
    def source(self) -> Source: ...

    def change(self, verb: Callable[[Draft], None], /, *, anywhere: bool = False) -> None: ...


class Layers(MutableMapping[str, Any]):
    """The variable-length metalayers of a frame: names and values, each assignment a commit.

    Values are what msgpack takes, and complex numbers, sets, tuples and arrays as python-blosc2 writes them.
    """

    def __init__(self, held: _Holder) -> None:
        self._held = held

    def _noted(self) -> Mapping[str, bytes]:
        source = self._held.source
        noted = source.extras if isinstance(source, Draft) else notes.extras_of(source.frame)
        return dict(noted.attrs)

    def _own(self) -> dict[str, bytes]:
        return {name: raw for name, raw in self._held.source.frame.vlmetalayers if name != extras.LAYER}

    def __getitem__(self, name: str) -> Any:
        raw = self._own().get(name)
        where = f"attribute {name!r} of {self._held.source.url}"
        if raw is not None:
            return located(where, lambda: extras.decode_attr(frame.unpack_vlmeta(raw)))
        content = self._noted()[name]
        return located(where, lambda: extras.decode_attr(content))

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"attribute names are str, not {type(name).__name__}")
        content = extras.encode_attr(value)
        self._held.change(lambda draft: draft.set_attr(name, content), anywhere=True)

    def __delitem__(self, name: str) -> None:
        def remove(draft: Draft) -> None:
            if name not in self:
                raise KeyError(name)
            draft.set_attr(name, None)

        self._held.change(remove, anywhere=True)

    def __contains__(self, name: object) -> bool:
        return name in self._own() or name in self._noted()

    def __iter__(self) -> Iterator[str]:
        return iter({**self._own(), **self._noted()})

    def __len__(self) -> int:
        return len({**self._own(), **self._noted()})

    def __repr__(self) -> str:
        return repr(dict(self))
