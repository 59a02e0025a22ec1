"""``b2array`` and ``python -m b2array``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata

from b2array.tools import demo

__all__ = ["main"]

_USAGE = """usage: b2array demo

  demo    show in ten seconds what b2array is for
"""
_HINT = "all commands but demo need packages that are not installed: pip install rich tqdm typer"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, by default with the arguments of the process, and return the exit code.

    0: success; 1: an error, or a missing file or object; 2: wrong usage; 3: a damaged file.
    """
    try:
        from b2array.tools import cli
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("rich", "typer", "click"):
            raise
        return _without_typer(list(sys.argv[1:] if argv is None else argv))
    return cli.main(argv)


def _without_typer(arguments: list[str]) -> int:
    if arguments == ["demo"]:
        demo.main()
        return 0
    if arguments == ["--version"]:
        print(metadata.version("b2array"))
        return 0
    if arguments[-1:] in (["-h"], ["--help"]) and arguments[:-1] in ([], ["demo"]):
        print(_USAGE, _HINT, sep="\n")
        return 0
    if arguments[:1] == ["demo"]:
        print("b2array demo: takes no arguments (see b2array --help)", file=sys.stderr)
        return 2
    if not arguments:
        print(_USAGE, _HINT, sep="\n", file=sys.stderr)
        return 2
    print(f"b2array: {_HINT}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
