"""The style of the package and its documentation, in a few counts that may only fall.

`TODAY` has a limit for each package, a little above its counts, so that a single slip stops nobody. Whoever improves a
package lowers its limits; nobody raises them. A run with the mark `slow` lists the limits that are exceeded
(`test_style.py`). It fails because of them only if the environment variable B2ARRAY_STYLE is "strict".
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "b2array"

DIALECT = {
    "that of, those of": r"\b(?:that|those) of\b",
    "of its own": r"\bof (?:its|their|his|her|your) own\b",
    "trailing too": r", too\b",
    "is none": r"\b(?:is|are|was|were) none\b",
    "who without a noun": r"(?:^|[.:;,(]\s+|\b(?:and|or|but|of|for|to|by|with|from|if|that)\s+)[Ww]ho\b(?![^.]*\?)",
    "Let ...": r"(?:^|[.:;]\s+|\band )[Ll]et \w+",
}
LOCALS = {"found", "held", "made", "given", "shown", "known"}


@dataclass(frozen=True, slots=True)
class Counts:
    """What the style test counts in a package; as a limit, what it may be at most."""

    dialect: int
    """Phrases of `DIALECT` in docstrings and comments."""
    tokens: float
    """Tokens of Python a line of code."""
    skips: int
    """Statements that the formatter skips, besides tables of numbers."""
    locals: int
    """Places that bind a local to one of the names `LOCALS`."""


# The goal is (2, 9.0, 0, 3) for each package.
TODAY = {
    "ground": Counts(2, 7.2, 0, 3),
    "array": Counts(0, 9.1, 0, 3),
    "bloscpack": Counts(2, 9.0, 0, 3),
    "codec": Counts(2, 8.8, 0, 3),
    "compute": Counts(2, 9.4, 0, 3),
    "display": Counts(2, 8.9, 0, 3),
    "commit": Counts(2, 9.2, 0, 3),  # it took over the transactions of groups
    "exchange": Counts(2, 8.9, 0, 3),
    "frame": Counts(2, 9.0, 0, 3),
    "format": Counts(2, 8.7, 0, 3),
    "grid": Counts(2, 9.3, 0, 3),
    "group": Counts(2, 8.9, 0, 3),
    "store": Counts(2, 8.9, 0, 3),
    "tools": Counts(3, 9.2, 0, 3),
    "xarray_io": Counts(3, 9.1, 0, 5),
}
# Packages that take over the code of others.
NEW = Counts(60, 11.1, 30, 70)
DOCS = 28
"""Phrases of `DIALECT` in the documentation."""


def phrases(text: str) -> list[str]:
    """Return the phrases of the dialect in `text`, which may be several paragraphs."""
    joined = [re.sub(r"\s+", " ", paragraph).strip() for paragraph in text.split("\n\n")]
    return [match.group() for part in joined for pattern in DIALECT.values() for match in re.finditer(pattern, part)]


def modules(package: str) -> list[Path]:
    if package == "ground":
        return sorted(PACKAGE.glob("*.py"))
    return sorted((PACKAGE / package).rglob("*.py"))


def packages() -> list[str]:
    return ["ground", *sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))]


@lru_cache(maxsize=1)
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


@lru_cache(maxsize=1)
def tokens_of(source: str) -> tuple[tokenize.TokenInfo, ...]:
    return tuple(tokenize.generate_tokens(io.StringIO(source).readline))


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield every string that stands alone: docstrings, and descriptions of fields."""
    for node in nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def comments(source: str) -> str:
    """Return the comments of `source`; those on neighbouring lines are one paragraph."""
    paragraphs: list[str] = []
    last = -1
    for token in tokens_of(source):
        if token.type == tokenize.COMMENT:
            separator = " " if token.start[0] == last + 1 else "\n\n"
            paragraphs.append(separator + token.string.lstrip("# "))
            last = token.start[0]
    return "".join(paragraphs)


NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


# Python 3.12 and later divide an f-string into tokens. Here it is one token, as in Python 3.11.
_FSTRING_START, _FSTRING_END = (getattr(tokenize, f"FSTRING_{end}", None) for end in ("START", "END"))


def code(source: str, tree: ast.Module) -> tuple[int, int]:
    """Return the number of tokens of `source`, and of the lines that they are on, without docstrings."""
    documentation = {(text.lineno, text.col_offset) for text in docstrings(tree)}
    tokens, lines, depth = 0, set(), 0
    for token in tokens_of(source):
        inside = depth > 0
        depth += (token.type == _FSTRING_START) - (token.type == _FSTRING_END)
        if inside or token.type in NO_CODE or token.start in documentation:
            continue
        tokens += 1
        lines.add(token.start[0])
    return tokens, len(lines)


def is_table(statement: ast.stmt) -> bool:
    """Return whether most of what `statement` names and holds are numbers."""
    leaves = [node for node in ast.walk(statement) if isinstance(node, ast.Constant | ast.Name | ast.Attribute)]
    numbers = [node for node in leaves if isinstance(node, ast.Constant) and isinstance(node.value, int | float)]
    return len(numbers) >= 8 and 2 * len(numbers) > len(leaves)


def skips(source: str, tree: ast.Module) -> int:
    lines = source.splitlines()
    skipped = [number for number, line in enumerate(lines, 1) if re.search(r"# fmt: (?:skip|off)", line)]
    if not skipped:
        return 0
    statements = [node for node in nodes(tree) if isinstance(node, ast.Assign | ast.AnnAssign)]
    tables = {node.end_lineno for node in statements if is_table(node)}
    return len([number for number in skipped if number not in tables])


def bound(tree: ast.Module) -> int:
    names = [node.id for node in nodes(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    names += [node.arg for node in nodes(tree) if isinstance(node, ast.arg)]
    return len([name for name in names if name in LOCALS])


@cache
def count(package: str) -> tuple[Counts, list[str]]:
    dialect: list[str] = []
    tokens = lines = skipped = locals_ = 0
    for module in modules(package):
        source = module.read_text(encoding="utf-8")
        tree = ast.parse(source)
        texts = [str(text.value) for text in docstrings(tree)]
        dialect += [f"{module.name}: {each}" for text in [*texts, comments(source)] for each in phrases(text)]
        of_module = code(source, tree)
        tokens += of_module[0]
        lines += of_module[1]
        skipped += skips(source, tree)
        locals_ += bound(tree)
    return Counts(len(dialect), tokens / max(lines, 1), skipped, locals_), dialect


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.rst")]


@cache
def in_docs() -> list[str]:
    listed = []
    for page in pages():
        lines = page.read_text(encoding="utf-8").splitlines()
        prose = "\n".join("" if re.match(r"\s*(?:>>>|\.\.\. )", line) else line for line in lines)
        listed += [f"{page.name}: {each}" for each in phrases(prose)]
    return listed


def slips_of(package: str, limits: Mapping[str, Counts] = TODAY) -> list[str]:
    """Return a line for each limit that a package exceeds."""
    listed = []
    counts, dialect = count(package)
    limit = limits.get(package, NEW)
    for name in (field.name for field in fields(Counts)):
        found, most = getattr(counts, name), getattr(limit, name)
        if found > most:
            which = f": {'; '.join(dialect)}" if name == "dialect" else ""
            listed.append(f"{found:.4g} {name}, at most {most} are wanted{which}")
    return listed


def slips_of_docs(most: int = DOCS) -> list[str]:
    """Return a line if the documentation exceeds its limit."""
    dialect = in_docs()
    if len(dialect) <= most:
        return []
    return [f"{len(dialect)} dialect, at most {most} are wanted: {'; '.join(dialect)}"]
