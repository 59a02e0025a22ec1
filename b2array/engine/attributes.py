"""The attributes of a frame as a mapping."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from b2array.engine.handle import Handle
from b2array.engine.transaction import Transaction
from b2array.errors import FormatError, UnsupportedError, located_error
from b2array.format.attributes import decode_attr, encode_attr

__all__ = ["Attributes"]


class Attributes(MutableMapping[str, Any]):
    """The variable-length metalayers of a frame: names and values, each assignment a commit.

    Values are what msgpack takes, dates and time spans, and complex numbers, sets, tuples and arrays as python-blosc2
    writes them.
    """

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __getitem__(self, name: str) -> Any:
        try:
            content = self._handle.described.state.attr(name)
            if content is not None:
                return decode_attr(content)
        except (FormatError, UnsupportedError) as error:
            raise located_error(f"attribute {name!r} of {self._handle.url}", error) from error
        raise KeyError(name)

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"attribute names are str, not {type(name).__name__}")
        content = encode_attr(value)
        self._handle.change(lambda transaction: transaction.set_attr(name, content), anywhere=True)

    def __delitem__(self, name: str) -> None:
        def remove(transaction: Transaction) -> None:
            if name not in transaction.state.attr_names:
                raise KeyError(name)
            transaction.set_attr(name, None)

        self._handle.change(remove, anywhere=True)

    def __contains__(self, name: object) -> bool:
        return name in self._handle.described.state.attr_names

    def __iter__(self) -> Iterator[str]:
        return iter(self._handle.described.state.attr_names)

    def __len__(self) -> int:
        return len(self._handle.described.state.attr_names)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __repr__(self) -> str:
        return repr(dict(self))
