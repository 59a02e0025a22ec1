"""How many examples Hypothesis draws for a test."""

from __future__ import annotations

from hypothesis import settings


def examples(usual: int) -> int:
    """Return the number for this run, where a run of Hypothesis's usual length has `usual`; five at least."""
    return max(5, usual * settings().max_examples // 100)
