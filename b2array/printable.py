"""Makes text from files safe to print, so that it cannot control a terminal or reverse the text around it."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape

__all__ = ["html_text", "json_text", "printable"]


def printable(text: object, *, keep_lines: bool = False) -> str:
    r"""Escape the characters of a text that Python's `repr` escapes.

    These are control characters, marks that change the direction of text, surrogates, and code points without a
    character. Line breaks are kept only with `keep_lines`.

    Examples
    --------
    >>> print(printable("level\x1b[2J"), printable("a\u202eb"), printable("\udc80"))
    level\x1b[2J a\u202eb \udc80
    """
    return _escape(str(text), "\n" if keep_lines else "", _escape_one)


def html_text(text: object) -> str:
    """Escape a text for HTML, and all unprintable characters except line breaks."""
    return escape(printable(text, keep_lines=True))


def json_text(data: object) -> str:
    r"""Return data as indented JSON that is safe to print. The escapes do not change its meaning.

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
    # Nearly always true, and much faster than checking every character.
    if text.isprintable():
        return text
    parts = []
    for character in text:
        is_safe = character.isprintable() or character in allowed
        parts.append(character if is_safe else escape_one(character))
    return "".join(parts)
