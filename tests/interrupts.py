"""Ctrl-C at chosen moments, and whether it has left a lock behind."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType


def interrupted(
    action: Callable[[], object], moment: int, counts: Callable[[FrameType, str], bool] = lambda *_: True
) -> tuple[KeyboardInterrupt | None, int]:
    """Raise KeyboardInterrupt where Python looks for signals: as a function begins, and behind a call of C code.

    `counts` says, for a frame and an event of `sys.setprofile`, whether that is one of the moments. Return the error,
    whose traceback keeps what the action held, and how many moments the action had.

    Python swallows an error that is raised while it finalizes an object, an unfinished generator for instance, and
    warns. Then the action goes on, and there is no error.
    """
    passed = 0

    def follow(frame: FrameType, event: str, _: object) -> None:
        nonlocal passed
        passed += event in ("call", "c_return") and counts(frame, event)
        if passed == moment:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(follow)
    try:
        action()
    except KeyboardInterrupt as error:
        return error, passed
    finally:
        sys.setprofile(None)
    return None, passed


def works(action: Callable[[], object]) -> bool:
    """Whether another thread does this, too, instead of waiting for a lock."""
    other = threading.Thread(target=action, daemon=True)
    other.start()
    other.join(30)
    return not other.is_alive()
