"""Texts from files, made safe to print: no character of theirs steers a terminal or turns the text around it."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape

__all__ = ["html_text", "json_text", "printable"]


def printable(text: object, *, keep_lines: bool = False) -> str:
    r"""Return a text with escapes in place of the characters that Python's `repr` escapes.

    These are control characters, marks that change the direction of text, surrogates, and code points without a
    character. A line break is kept only if `keep_lines` says so.

    Examples
    --------
    >>> print(printable("level\x1b[2J"), printable("a\u202eb"), printable("\udc80"))
    level\x1b[2J a\u202eb \udc80
    """
    return _escape(str(text), "\n" if keep_lines else "", _escape_one)


def html_text(text: object) -> str:
    """Return a text for a page: escaped, and without characters that cannot be printed, except line breaks."""
    return escape(printable(text, keep_lines=True))


def json_text(data: object) -> str:
    r"""Return data as indented JSON that can be printed. It means the same as without the escapes.

    Examples
    --------
    >>> print(json_text("é\x9b"))
    "é\u009b"
    """
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    return _escape(text, "\n", lambda each: json.dumps(each)[1:-1])


def _escape_one(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _escape(text: str, allowed: str, escape_one: Callable[[str], str]) -> str:
    # Nearly always, and much faster than a look at every character.
    if text.isprintable():
        return text
    parts = []
    for character in text:
        is_safe = character.isprintable() or character in allowed
        parts.append(character if is_safe else escape_one(character))
    return "".join(parts)
