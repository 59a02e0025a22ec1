"""Draw the pictures of the documentation's page about performance.

    python asv_bench/compare.py --json defaults.json
    python asv_bench/compare.py --equal --json equal.json
    python asv_bench/compression.py --json compression.json
    python asv_bench/users.py --json users.json
    python asv_bench/compression.py --filters --json filters.json
    python asv_bench/plot.py defaults.json equal.json compression.json users.json filters.json

Takes the medians of the first field of each file, puts their ratios into docs/measured.json, and draws speed.svg,
equal.svg, requests.svg, compression.svg, users.svg and filters.svg in docs/drawings from that file. Leave out a file
with ``-``.
Without arguments it only draws. Ratios are those of processor time, which depends less than the clock on what else a
machine does.
"""

from __future__ import annotations

import json
import math
import runpy
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
MEASURED = DOCS / "measured.json"
_COLOURS = {"blosc2": "cold", "zarr": "hot", "zarr, shards": "warm on-hot", "h5py": "new", "tensorstore": "soft"}
_USER_COLOURS = {**_COLOURS, "zarrs": "dead", "icechunk": "block"}
_NAMES = {"blosc2": "python-blosc2", "icechunk": "Icechunk"}
_SIZE_COLOURS = {"python-blosc2": "cold", "zarr": "hot", "h5py, lzf": "warm on-hot", "h5py, gzip": "new"}
_LEAST_SIZE, _MOST_SIZE = 0.5, 12
_LEFT, _RIGHT, _LEAST, _MOST = 200, 740, 0.1, 100


def ratios(rows: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Return the processor time of each other library over that of b2array, by row."""
    return {
        label: {name: round(row[name][1] / row["b2array"][1], 2) for name in _COLOURS}
        for label, row in rows.items()
        if label != "size" and row.keys() >= _COLOURS.keys()
    }


def user_ratios(found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the ratios of what users.py measured: of wall time where a server takes long, and of sizes."""
    rows = {}
    for label, row in found["rows"].items():
        clock = 0 if label.startswith("store:") else 1
        rows[label] = {
            name: round(each[clock] / row["b2array"][clock], 2) for name, each in row.items() if name != "b2array"
        }
        if label == "xarray: load":
            sizes = found["sizes"]
            rows["xarray: size on disk"] = {
                name: round(nbytes / sizes["b2array"], 2) for name, nbytes in sizes.items() if name != "b2array"
            }
    return rows


def place(ratio: float) -> float:
    """Return where a ratio stands on the axis."""
    return round(_LEFT + _share(ratio, _LEAST, _MOST) * (_RIGHT - _LEFT), 1)


def _share(ratio: float, least: float, most: float) -> float:
    """Return where a ratio is between two others, on a logarithmic axis."""
    return math.log(min(max(ratio, least), most) / least) / math.log(most / least)


def _legend(picture: Any, colours: dict[str, str], width: int) -> None:
    """Draw the mark and the name of each colour."""
    for n, (name, colour) in enumerate(colours.items()):
        picture.rect(10 + width * n, 8, 12, 12, colour, 'rx="6"')
        picture.text(28 + width * n, 19, _NAMES.get(name, name), "ink small")


def speed(drawing: Any, rows: dict[str, dict[str, float]]) -> Any:
    """Draw a line a row, with a mark for each library, and b2array at 1."""
    p = drawing(760, 96 + 22 * len(rows))
    bottom = 62 + 22 * len(rows)
    p.text(place(1) - 10, 50, "the other takes less", "soft small", "end")
    p.text(place(1) + 10, 50, "b2array takes less", "soft small")
    colours = {name: colour for name, colour in _USER_COLOURS.items() if any(name in row for row in rows.values())}
    _legend(p, colours, min(128, 750 // len(colours)))
    for ratio in (0.1, 0.3, 1, 3, 10, 30, 100):
        p.line((place(ratio), 58), (place(ratio), bottom), kind=f"none on-{'ink' if ratio == 1 else 'line'}")
        p.text(place(ratio), bottom + 16, f"{ratio:g}", "soft small", "middle")
    p.text(
        (_LEFT + _RIGHT) / 2,
        bottom + 32,
        "processor time of the other / processor time of b2array",
        "soft small",
        "middle",
    )
    for n, (label, row) in enumerate(rows.items()):
        y = 70 + 22 * n
        p.text(10, y + 4, label, "ink small")
        p.line((_LEFT, y), (_RIGHT, y), kind="none on-line", more='stroke-width="0.5"')
        for name, ratio in row.items():
            p.rect(place(ratio) - 5.5, y - 5.5, 11, 11, colours[name], 'rx="6" opacity="0.85"')
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
            width = round(400 * ms / longest, 1)
            p.rect(70, y + 19 * k, width, 16, ("new", "block", "dead")[k])
            p.text(76 + width, y + 19 * k + 12, f"{library}: {ms:g} ms, {number:g} requests", "soft small")
    return p


def sizes(drawing: Any, rows: dict[str, dict[str, float]]) -> Any:
    """Draw a line a kind of data: the bytes that other libraries take over those of b2array, which is at 1."""
    p = drawing(760, 96 + 20 * len(rows))
    bottom = 62 + 20 * len(rows)
    p.text(_size_place(1) - 10, 50, "the other's files are smaller", "soft small", "end")
    p.text(_size_place(1) + 10, 50, "b2array's files are smaller", "soft small")
    _legend(p, _SIZE_COLOURS, 140)
    for ratio in (0.5, 1, 2, 4, 8):
        p.line(
            (_size_place(ratio), 58), (_size_place(ratio), bottom), kind=f"none on-{'ink' if ratio == 1 else 'line'}"
        )
        p.text(_size_place(ratio), bottom + 16, f"{ratio:g}", "soft small", "middle")
    p.text((_LEFT + _RIGHT) / 2, bottom + 32, "bytes of the other / bytes of b2array", "soft small", "middle")
    for n, (kind, row) in enumerate(rows.items()):
        y = 70 + 20 * n
        p.text(10, y + 4, kind, "ink small")
        p.line((_LEFT, y), (_RIGHT, y), kind="none on-line", more='stroke-width="0.5"')
        for name, ratio in row.items():
            p.rect(_size_place(ratio) - 5.5, y - 5.5, 11, 11, _SIZE_COLOURS[name], 'rx="6" opacity="0.85"')
    return p


def _size_place(ratio: float) -> float:
    return round(_LEFT + _share(ratio, _LEAST_SIZE, _MOST_SIZE) * (_RIGHT - _LEFT), 1)


def size_ratios(rows: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Return the bytes of each other library over those of b2array, by kind of data."""
    return {
        kind: {name: round(row[name][0] / row["b2array"][0], 3) for name in _SIZE_COLOURS} for kind, row in rows.items()
    }


_FILTER_COLOURS = {"none": "cold", "shuffle": "ink", "bitshuffle": "new", "bytedelta": "hot"}
_LEAST_FILTERED, _MOST_FILTERED = 0.05, 2.5
_LEAST_READ, _MOST_READ = 0.3, 6


def filter_ratios(rows: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
    """Divide the size and the reading time with each filter by the size and time with shuffle, for each kind of data.

    The name "b2array" stands for the filter that b2array chooses.
    """
    return {
        kind: {
            name: [round(nbytes / row["shuffle"][0], 3), round(reading / row["shuffle"][2], 2)]
            for name, (nbytes, _, reading) in row.items()
        }
        for kind, row in rows.items()
    }


def filters(drawing: Any, rows: dict[str, dict[str, list[float]]]) -> Any:
    """Draw size against reading time: a mark for each filter and kind of data, and a ring around the chosen filter."""
    p = drawing(760, 420)
    left, right, top, bottom = 60, 740, 44, 370

    def across(ratio: float) -> float:
        return left + _share(ratio, _LEAST_FILTERED, _MOST_FILTERED) * (right - left)

    def up(ratio: float) -> float:
        return bottom - _share(ratio, _LEAST_READ, _MOST_READ) * (bottom - top)

    _legend(p, _FILTER_COLOURS, 120)
    p.rect(490, 6, 16, 16, "none on-ink", 'rx="8"')
    p.text(512, 19, "chosen", "ink small")
    for ratio in (0.05, 0.1, 0.2, 0.5, 1, 2):
        p.line((across(ratio), top), (across(ratio), bottom), kind=f"none on-{'ink' if ratio == 1 else 'line'}")
        p.text(across(ratio), bottom + 16, f"{ratio:g}", "soft small", "middle")
    for ratio in (0.5, 1, 2, 5):
        p.line((left, up(ratio)), (right, up(ratio)), kind=f"none on-{'ink' if ratio == 1 else 'line'}")
        p.text(left - 8, up(ratio) + 4, f"{ratio:g}", "soft small", "end")
    p.text((left + right) / 2, bottom + 36, "bytes / bytes with shuffle", "soft small", "middle")
    p.text(10, 36, "time to read / time with shuffle", "soft small")
    for row in rows.values():
        size, time = row["b2array"]
        p.rect(across(size) - 7.5, up(time) - 7.5, 15, 15, "none on-ink", 'rx="7.5"')
        for name, colour in _FILTER_COLOURS.items():
            size, time = row[name]
            p.rect(across(size) - 4, up(time) - 4, 8, 8, colour, 'rx="4" opacity="0.8"')
    return p


def pictures() -> dict[str, str]:
    """Return the pictures of what was measured."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    drawing = runpy.run_path(str(DOCS / "drawings.py"))["Picture"]
    draws = {
        "speed": speed,
        "equal": speed,
        "requests": requests,
        "compression": sizes,
        "users": speed,
        "filters": filters,
    }
    return {name: draw(drawing, measured[name]).svg() for name, draw in draws.items() if name in measured}


def main() -> None:
    """Take over what was measured, and draw it."""
    if sys.argv[1:]:
        measured = json.loads(MEASURED.read_text(encoding="utf-8"))
        names = ("speed", "equal", "compression", "users", "filters")
        for name, path in zip(names, sys.argv[1:], strict=False):
            if path == "-":
                continue
            results = json.loads(Path(path).read_text(encoding="utf-8"))
            if name == "users":
                measured[name] = user_ratios(results)
            elif name == "compression":
                measured[name] = size_ratios(results)
            elif name == "filters":
                measured[name] = filter_ratios(results)
            else:
                measured[name] = ratios(next(iter(results.values())))
        MEASURED.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    for name, svg in pictures().items():
        (DOCS / "drawings" / f"{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
