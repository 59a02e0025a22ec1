"""Keys as text: what stands between NumPy's brackets, for programs that get it from outside."""

from __future__ import annotations

import ast
from types import EllipsisType
from typing import Any

__all__ = ["parse"]

_LONGEST = 1000
_EXPECTED = "expected integers, slices, ..., None, lists of integers or names of fields, as in [0:3, ::-1]"


def parse(text: str) -> Any:
    """Turn text into a key. Nothing in it is executed.

    Parameters
    ----------
    text : str
        With brackets or without.

    Raises
    ------
    ValueError
        It is something else than integers, slices, ``...``, None, and lists of integers or names.

    Examples
    --------
    >>> parse("[0:3, ::-1]")
    (slice(0, 3, None), slice(None, None, -1))
    >>> parse("..., -1, [2, 0], 'x'")
    (Ellipsis, -1, [2, 0], 'x')
    """
    inner = text.strip()
    if len(inner) > _LONGEST:
        raise ValueError(f"{_EXPECTED}, got {len(inner)} characters")
    try:
        body = ast.parse(f"_{inner}" if inner.startswith("[") else f"_[{inner}]", mode="eval").body
        # Without its brackets, a list and what follows it look like two subscripts.
        if not (isinstance(body, ast.Subscript) and isinstance(body.value, ast.Name)):
            body = ast.parse(f"_[{inner}]", mode="eval").body
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        raise ValueError(f"{_EXPECTED}, got {text!r}") from None
    match body:
        case ast.Subscript(value=ast.Name(), slice=found):
            return _value(found, text)
    raise ValueError(f"{_EXPECTED}, got {text!r}")


def _value(node: ast.expr, text: str) -> Any:
    match node:
        case ast.Tuple(elts=entries):
            return tuple(_value(entry, text) for entry in entries)
        case ast.Slice(lower=lower, upper=upper, step=step):
            return slice(*(None if part is None else _integer(part, text) for part in (lower, upper, step)))
        case ast.List(elts=entries):
            return [_value(entry, text) for entry in entries]
        case ast.Constant(value=bool() | int() | str() | None | EllipsisType() as value):
            return value
    return _integer(node, text)


def _integer(node: ast.expr, text: str) -> int | None:
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
    raise ValueError(f"{_EXPECTED}, got {text!r}")
