"""``python -m b2array``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from b2array import demo

__all__ = ["main"]

_USAGE = """usage: python -m b2array demo

  demo    store a small simulation, open it lazily, and read parts of it
"""
_HINT = "Other commands need an extra: pip install 'b2array[cli]'"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments behind the program's name; by default those of the process.

    Returns
    -------
    int
        The exit code: 0, or 2 if the arguments are not understood.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["demo"]:
        demo.main()
        return 0
    if arguments in (["-h"], ["--help"]):
        print(_USAGE, _HINT, sep="\n")
        return 0
    print(_USAGE, _HINT, sep="\n", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
