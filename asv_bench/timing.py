"""Times of several verbs that take turns, so that what else the machine does meets all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

Times = tuple[float, float]
"""Seconds by wall clock and of processor time."""


def in_turns(verbs: Mapping[str, Callable[[int], Callable[[], object]]], rounds: int) -> dict[str, Times]:
    """Return medians; a verb is called with the number of the round, and what it returns is timed."""
    samples: dict[str, list[Times]] = {name: [] for name in verbs}
    order = list(verbs)
    for number in range(rounds):
        for name in order:
            verb = verbs[name](number)
            wall, cpu = time.perf_counter(), time.process_time()
            verb()
            samples[name].append((time.perf_counter() - wall, time.process_time() - cpu))
        order.append(order.pop(0))
    return {name: (median(wall for wall, _ in each), median(cpu for _, cpu in each)) for name, each in samples.items()}
