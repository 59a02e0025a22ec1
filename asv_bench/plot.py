"""Draw the pictures of the documentation's page about performance.

    python asv_bench/compare.py > compare.txt
    python asv_bench/plot.py compare.txt

Takes what compare.py has printed, puts the medians into docs/measured.json, and draws docs/drawings/speed.svg and
docs/drawings/requests.svg from that file. Without an argument it only draws.
"""

from __future__ import annotations

import json
import math
import re
import runpy
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
MEASURED = DOCS / "measured.json"
_TITLE = re.compile(r"^(?P<data>[^:]+): .*; (?P<codec>\w+), level \d+;")
_ROW = re.compile(r"^(?P<label>.{22}) *(?P<ours>[0-9.]+) ms +(?P<theirs>[0-9.]+) ms")


def parsed(text: str) -> dict[str, dict[str, float]]:
    """Return b2array's time over python-blosc2's, by codec and row, as the median of the kinds of data."""
    found: dict[str, dict[str, list[float]]] = {}
    rows: dict[str, list[float]] = {}
    for line in text.splitlines():
        if title := _TITLE.match(line):
            by_label = found.setdefault(title["codec"], {})
            rows = by_label
        elif (row := _ROW.match(line)) and found:
            rows.setdefault(row["label"].strip(), []).append(float(row["ours"]) / float(row["theirs"]))
    return {
        codec: {label: round(sorted(ratios)[len(ratios) // 2], 2) for label, ratios in by_label.items()}
        for codec, by_label in found.items()
    }


def speed(drawing: Any, ratios: dict[str, dict[str, float]]) -> Any:
    """Draw the ratio of times as bars to the left and right of 1."""
    labels = list(next(iter(ratios.values())))
    p = drawing(760, 74 + 46 * len(labels))
    middle, scale = 440, 230
    p.text(middle - 12, 20, "b2array is faster", "new bold", "end")
    p.text(middle + 12, 20, "python-blosc2 is faster", "hot bold")
    for n, label in enumerate(labels):
        y = 40 + 46 * n
        p.text(10, y + 21, label, "ink")
        for k, (codec, rows) in enumerate(ratios.items()):
            width = scale * math.log2(rows[label])
            p.rect(middle + min(0, width), y + 17 * k, max(abs(width), 1), 15, "hot" if width > 0 else "new")
            end = middle + width + (6 if width > 0 else -6)
            words = f"{codec}: {rows[label]:.2f}"
            p.text(end, y + 17 * k + 12, words, "soft small", "start" if width > 0 else "end")
    bottom = 40 + 46 * len(labels)
    p.line((middle, 28), (middle, bottom), kind="none on-ink")
    p.text(middle, bottom + 18, "time of b2array / time of python-blosc2", "soft small", "middle")
    return p


def requests(drawing: Any, rows: dict[str, dict[str, list[float]]]) -> Any:
    """Draw milliseconds and requests of reads from an object store."""
    libraries = list(next(iter(rows.values())))
    p = drawing(760, 30 + 70 * len(rows))
    longest = max(ms for each in rows.values() for _, ms in each.values())
    for n, (label, each) in enumerate(rows.items()):
        y = 14 + 70 * n
        p.text(10, y + 32, label, "ink bold")
        for k, library in enumerate(libraries):
            number, ms = each[library]
            width = 400 * ms / longest
            p.rect(70, y + 19 * k, width, 16, ("new", "block", "dead")[k])
            words = f"{library}: {ms:g} ms, {number:g} requests"
            p.text(76 + width, y + 19 * k + 12, words, "soft small")
    return p


def pictures() -> dict[str, str]:
    """Return the pictures of what was measured."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    drawing = runpy.run_path(str(DOCS / "drawings.py"))["Picture"]
    return {verb.__name__: verb(drawing, measured[verb.__name__]).svg() for verb in (speed, requests)}


def main() -> None:
    """Take over what was measured, and draw it."""
    if sys.argv[1:]:
        measured = json.loads(MEASURED.read_text(encoding="utf-8"))
        measured["speed"] = parsed(Path(sys.argv[1]).read_text(encoding="utf-8"))
        MEASURED.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    for name, svg in pictures().items():
        (DOCS / "drawings" / f"{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
