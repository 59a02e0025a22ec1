"""How many examples Hypothesis draws for a test, and how many places a test tries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from hypothesis import settings

T = TypeVar("T")


class Sampled(Protocol):
    """What the fixture `sampled` gives: it takes one of so many places, more in a slow run, and all in a long one."""

    def __call__(self, places: Sequence[T], one_in: int, /) -> Sequence[T]: ...


def examples(usual: int) -> int:
    """Return the number for this run, where a run of Hypothesis's usual length has `usual`; five at least."""
    return max(5, usual * settings().max_examples // 100)
