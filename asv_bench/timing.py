"""Times of several verbs that take turns, so that what else the machine does meets all of them alike."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from statistics import median

Times = tuple[float, float]
"""Seconds by wall clock and of processor time."""


def in_turns(verbs: Mapping[str, Callable[[int], Callable[[], object]]], rounds: int) -> dict[str, Times]:
    """Return medians; a verb is called with the number of the round, and what it returns is timed.

    The order is another one in each round: what a verb leaves behind, such as other code in the processor's caches and
    threads that are still busy, must not always meet the same one. What a verb has left for the disk is written before
    the next one: otherwise the one that waits for the disk would also wait for what the others wrote.
    """
    samples: dict[str, list[Times]] = {name: [] for name in verbs}
    order, rng = list(verbs), random.Random(0)
    for number in range(rounds):
        rng.shuffle(order)
        for name in order:
            verb = verbs[name](number)
            if hasattr(os, "sync"):  # absent on Windows
                os.sync()
            wall, cpu = time.perf_counter(), time.process_time()
            verb()
            samples[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {name: (median(wall for wall, _ in each), median(cpu for _, cpu in each)) for name, each in samples.items()}
