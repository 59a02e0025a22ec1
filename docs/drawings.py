"""Draw the pictures of the documentation: python docs/drawings.py.

Each is an SVG file in docs/drawings/ that follows the light or dark colours of the page or of the reader's system.
What a picture says about blocks and chunks is computed by b2array.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "drawings"

_LIGHT = {
    "ink": "#1f2328", "soft": "#57606a", "line": "#c4ccd5", "paper": "#ffffff", "chunk": "#e7f0fa", "block": "#b9d4ef",
    "hot": "#e8590c", "warm": "#ffd8a8", "new": "#2b8a3e", "fresh": "#b2f2bb", "dead": "#dee2e6", "cold": "#1864ab",
}  # fmt: skip
_DARK = {
    "ink": "#e6edf3", "soft": "#a2abb5", "line": "#4a525c", "paper": "#14181d", "chunk": "#1d2b3a", "block": "#2f4d6c",
    "hot": "#ff922b", "warm": "#6b4216", "new": "#51cf66", "fresh": "#1f4d2b", "dead": "#343a40", "cold": "#74c0fc",
}  # fmt: skip
_FIELD = (
    "#30123b", "#3e378f", "#4458cb", "#4777ef", "#3e9bfe", "#22c1dd", "#21e2b6", "#5cfb7e", "#a2fc3c", "#d5e935",
    "#fbc638", "#fa9a2f", "#e9611c", "#c93205", "#960f01",
)  # fmt: skip


def _style() -> str:
    light = "".join(f"--{name}:{colour};" for name, colour in _LIGHT.items())
    dark = "".join(f"--{name}:{colour};" for name, colour in _DARK.items())
    fills = "".join(f"svg.b2 .{name}{{fill:var(--{name})}}svg.b2 .on-{name}{{stroke:var(--{name})}}" for name in _LIGHT)
    return (
        f"svg.b2{{{light}}}"
        f"@media (prefers-color-scheme:dark){{svg.b2{{{dark}}}}}"
        f"[data-theme=light] svg.b2{{{light}}}[data-theme=dark] svg.b2{{{dark}}}"
        "svg.b2 text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:13px}"
        "svg.b2 .code{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:12.5px}"
        "svg.b2 .bold{font-weight:600}svg.b2 .small{font-size:11.5px}svg.b2 .none{fill:none}"
        f"{fills}"
    )


class Picture:
    """Shapes and words, in the order in which they are drawn."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.parts: list[str] = []

    def rect(self, x: float, y: float, w: float, h: float, kind: str = "none on-line", more: str = "") -> None:
        """Draw a rectangle."""
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" {more}/>')

    def text(self, x: float, y: float, words: str, kind: str = "ink", anchor: str = "start") -> None:
        """Write one line, or one below the other where there are line breaks."""
        for number, line in enumerate(words.split("\n")):
            self.parts.append(
                f'<text class="{kind}" x="{x:g}" y="{y + 17 * number:g}" text-anchor="{anchor}">{escape(line)}</text>'
            )

    def line(self, *points: tuple[float, float], kind: str = "none on-soft", more: str = "") -> None:
        """Draw a line through points."""
        path = "L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(f'<path class="{kind}" d="M{path}" {more}/>')

    def arrow(self, *points: tuple[float, float], kind: str = "soft") -> None:
        """Draw a line with a head at its end."""
        (x0, y0), (x1, y1) = points[-2:]
        self.line(*points, kind=f"none on-{kind}", more='stroke-width="1.6"')
        angle = math.atan2(y1 - y0, x1 - x0)
        wings = [(x1 - 8 * math.cos(angle + turn), y1 - 8 * math.sin(angle + turn)) for turn in (0.42, -0.42)]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(x1, y1), *wings])
        self.parts.append(f'<polygon class="{kind}" points="{corners}"/>')

    def grid(self, x: float, y: float, w: float, h: float, rows: int, columns: int, kind: str, more: str = "") -> None:
        """Draw the lines of a grid, with its frame."""
        across = [f"M{x:g} {y + h * n / rows:g}h{w:g}" for n in range(rows + 1)]
        down = [f"M{x + w * n / columns:g} {y:g}v{h:g}" for n in range(columns + 1)]
        self.parts.append(f'<path class="none {kind}" d="{"".join(across + down)}" {more}/>')

    def box(self, x: float, y: float, w: float, h: float, words: str, kind: str = "chunk on-line") -> None:
        """Draw a box with words in its middle."""
        lines = words.split("\n")
        self.rect(x, y, w, h, kind, 'rx="5"')
        for number, line in enumerate(lines):
            self.text(x + w / 2, y + h / 2 + 4.5 + 17 * (number - (len(lines) - 1) / 2), line, anchor="middle")

    def svg(self) -> str:
        """Return the file."""
        return (
            f'<svg class="b2" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}">\n<style>{_style()}</style>\n' + "\n".join(self.parts) + "\n</svg>\n"
        )


def field(height: int = 36, width: int = 60) -> np.ndarray:
    """Return a field with eddies, from 0 to 1."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1.6 : width * 1j]
    values = 0.55 - 0.35 * y
    for cy, cx, size, sign in [
        (0.3, 0.4, 0.02, 1),
        (0.62, 0.95, 0.03, -0.8),
        (0.25, 1.25, 0.014, 0.9),
        (0.8, 0.3, 0.02, 0.8),
    ]:
        values = values + 0.45 * sign * np.exp(-((y - cy) ** 2 + (x - cx) ** 2) / size)
    values += 0.05 * np.sin(9 * x + 4 * y)
    return (values - values.min()) / np.ptp(values)


def paint(picture: Picture, values: np.ndarray, x: float, y: float, size: float) -> None:
    """Draw each item of a field as a square of its colour."""
    shades = np.minimum((values * len(_FIELD)).astype(int), len(_FIELD) - 1)
    for shade, colour in enumerate(_FIELD):
        path = []
        for row, line in enumerate(shades == shade):
            edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(int), [0]])))
            path += [
                f"M{x + size * a:g} {y + size * row:g}h{size * (b - a):g}v{size:g}h-{size * (b - a):g}z"
                for a, b in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
            ]
        picture.parts.append(f'<path fill="{colour}" shape-rendering="crispEdges" d="{"".join(path)}"/>')


def touched(shape: tuple[int, int], blocks: tuple[int, int], key: tuple[slice, slice]) -> list[tuple[int, int]]:
    """Return the blocks that a selection touches."""
    rows, columns = ({i // b for i in range(n)[k]} for n, b, k in zip(shape, blocks, key, strict=True))
    return [(row, column) for row in sorted(rows) for column in sorted(columns)]


def overview() -> Picture:
    """Draw a field, the blocks that a read touches, and the file."""
    p = Picture(760, 306)
    size, x0, y0 = 6, 10, 50
    values = field()
    height, width = values.shape
    key = slice(7, 19), slice(13, 32)
    hit = touched(values.shape, (4, 5), key)
    p.text(x0, 22, "The array", "ink bold")
    p.text(x0, 39, "chunks (bold) of blocks (thin)", "soft small")
    paint(p, values, x0, y0, size)
    rows, columns = height // 4, width // 5
    for row in range(rows):
        for column in range(columns):
            if (row, column) not in hit:
                p.rect(x0 + column * 30, y0 + row * 24, 30, 24, "paper", 'opacity="0.62"')
    p.grid(x0, y0, 360, 216, rows, columns, "on-paper", 'stroke-width="0.6" opacity="0.8"')
    p.grid(x0, y0, 360, 216, 3, 3, "on-ink", 'stroke-width="1.6"')
    p.rect(x0 + key[1].start * size, y0 + key[0].start * size, 19 * size, 12 * size, "none on-hot", 'stroke-width="3"')
    p.text(x0, y0 + 240, f"a[7:19, 13:32] touches {len(hit)} of {rows * columns} blocks", "ink code")

    p.text(420, 22, "The file", "ink bold")
    p.text(420, 39, "each block compressed by itself", "soft small")
    rng = np.random.default_rng(3)
    x, y = 420.0, 54.0
    for chunk in range(9):
        for n in range(12):
            r, c = (chunk // 3) * 3 + n // 4, (chunk % 3) * 4 + n % 4
            w = float(6 + rng.integers(0, 8))
            if x + w > 745:
                x, y = 420.0, y + 22
            hot = (r, c) in hit
            p.rect(x, y, w - 1, 17, "hot" if hot else "block")
            x += w
        x += 4
    p.text(420, y + 38, "header, chunks, index, checksums: a Blosc2 frame", "soft small")
    p.arrow((440, y + 50), (440, y + 84))
    p.text(456, y + 64, "the orange bytes are fetched, compared with", "soft small")
    p.text(456, y + 80, "their checksums and decoded", "soft small")
    paint(p, values[key], 424, y + 92, size)
    p.rect(424, y + 92, 19 * size, 12 * size, "none on-hot", 'stroke-width="3"')
    p.text(556, y + 124, "a NumPy array", "ink")
    return p


def grids() -> Picture:
    """Draw array, chunk, block and padding."""
    p = Picture(760, 262)
    p.text(10, 22, "array (10, 14)", "ink bold")
    p.text(10, 39, "chunks (4, 6): a grid of 3 x 3", "soft small")
    x, y, s = 10, 52, 15
    p.rect(x, y, 18 * s, 12 * s, "dead", 'opacity="0.6"')
    p.rect(x, y, 14 * s, 10 * s, "chunk")
    p.rect(x + 6 * s, y, 6 * s, 4 * s, "warm")
    p.grid(x, y, 14 * s, 10 * s, 10, 14, "on-line", 'stroke-width="0.5"')
    p.grid(x, y, 18 * s, 12 * s, 3, 3, "on-ink", 'stroke-width="1.6"')
    for n in range(9):
        p.text(x + (n % 3) * 6 * s + 4, y + (n // 3) * 4 * s + 14, str(n), "ink bold")
    p.text(x, 250, "grey: padding, never shown", "soft small")
    p.arrow((290, 90), (348, 90))
    p.text(360, 22, "chunk 1", "ink bold")
    p.text(360, 39, "blocks (2, 3): a grid of 2 x 2", "soft small")
    big = 30
    p.rect(360, y, 6 * big, 4 * big, "warm")
    p.rect(360 + 3 * big, y, 3 * big, 2 * big, "hot", 'opacity="0.55"')
    p.grid(360, y, 6 * big, 4 * big, 4, 6, "on-line", 'stroke-width="0.6"')
    p.grid(360, y, 6 * big, 4 * big, 2, 2, "on-ink", 'stroke-width="1.6"')
    p.arrow((546, 90), (590, 90))
    p.text(602, 22, "a block", "ink bold")
    p.text(602, 39, "6 items, in C order", "soft small")
    for n in range(6):
        p.rect(602 + (n % 3) * 44, y + (n // 3) * 30, 44, 30, "warm on-ink")
        p.text(624 + (n % 3) * 44, y + 20 + (n // 3) * 30, f"{n // 3},{n % 3 + 9}", "ink code", "middle")
    p.arrow((668, 118), (668, 150))
    p.text(680, 139, "shuffle", "soft small")
    p.box(590, 154, 156, 28, "48 bytes, like by like")
    p.arrow((668, 184), (668, 212))
    p.text(680, 203, "zstd", "soft small")
    p.box(628, 216, 80, 28, "a stream", "warm on-hot")
    return p


_SHAPES = [((4, 24), "flat: (4, 24)"), ((24, 4), "tall: (24, 4)"), ((12, 12), "square: (12, 12)")]


def choose() -> Picture:
    """Draw what three reads touch with three shapes of chunks."""
    p = Picture(760, 486)
    keys = [
        ("a[i]", (slice(9, 10), slice(None))),
        ("a[:, j]", (slice(None), slice(13, 14))),
        ("a box", (slice(14, 22), slice(14, 22))),
    ]
    for column, (label, _) in enumerate(keys):
        p.text(230 + 186 * column + 72, 22, label, "ink code bold", "middle")
    for row, (chunks, words) in enumerate(_SHAPES):
        y = 36 + 150 * row
        p.text(10, y + 56, words, "ink bold")
        p.text(10, y + 74, "chunks of 96 or 144 items" if not row else "", "soft small")
        for column, (_, key) in enumerate(keys):
            x = 230 + 186 * column
            hit = touched((24, 24), chunks, key)
            p.rect(x, y, 144, 120, "chunk")
            h, w = 120 * chunks[0] / 24, 144 * chunks[1] / 24
            for r, c in hit:
                p.rect(x + c * w, y + r * h, w, h, "warm")
            p.grid(x, y, 144, 120, 24 // chunks[0], 24 // chunks[1], "on-ink", 'stroke-width="1"')
            (r0, r1, _), (c0, c1, _) = (k.indices(24) for k in key)
            p.rect(x + c0 * 6, y + r0 * 5, (c1 - c0) * 6, (r1 - r0) * 5, "hot", 'opacity="0.8"')
            items = len(hit) * chunks[0] * chunks[1]
            p.text(x + 72, y + 136, f"{len(hit)} read, {items * 100 // 576} % of it", "soft small", "middle")
    return p


def read() -> Picture:
    """Draw the way of a read."""
    p = Picture(760, 214)
    steps = [
        ("a[10:20, 5]", "the key"), ("chunks 0, 1\nblocks 2, 5, 8", "what it touches"),
        ("3 ranges\nof bytes", "one request each,\nall at the same time"), ("CRC-32\ncompared", "each block and\nchunk head"),
        ("decompress,\nunshuffle", "threads, one\nblock each"), ("ndarray", "the items, in\ntheir places"),
    ]  # fmt: skip
    for n, (words, below) in enumerate(steps):
        x = 8 + 127 * n
        p.box(x, 60, 106, 56, words, "warm on-hot" if n in (2, 3) else "chunk on-line")
        p.text(x + 53, 136, below, "soft small", "middle")
        if n:
            p.arrow((x - 20, 88), (x - 3, 88))
    p.rect(127, 40, 500, 0, "none on-line")
    p.line((188, 56), (188, 28), (695, 28), kind="none on-cold", more='stroke-dasharray="4 4"')
    p.arrow((695, 28), (695, 56), kind="cold")
    p.text(440, 20, "blocks that were decoded a moment ago come from a cache in memory", "cold small", "middle")
    p.text(
        8,
        190,
        "Nothing but the touched blocks is read. A byte that changed since it was written is an error, never a value.",
        "ink",
    )
    return p


def _file(p: Picture, x: float, y: float, parts: Iterable[tuple[str, float, str]]) -> float:
    for words, width, kind in parts:
        p.box(x, y, width, 34, words, kind)
        x += width + 2
    return x


def commit() -> Picture:
    """Draw the steps of a commit in one file."""
    p = Picture(760, 356)
    old = [
        ("chunk 0", 74, "block on-line"),
        ("chunk 1", 74, "block on-line"),
        ("index", 54, "block on-line"),
        ("trailer", 58, "block on-line"),
    ]
    new = [("chunk 1", 74, "fresh on-new"), ("index", 54, "fresh on-new"), ("trailer", 58, "fresh on-new")]
    head = ("header", 66, "block on-cold")
    steps = [
        ("1  Before.", "The header says where the index is, the index where each chunk is.", [head, *old]),
        ("2  a[5] = 7 appends the new chunk, a new index and a new trailer.", "Nothing refers to them yet. Killed here: the array is as before.", [head, *old, *new]),
        ("3  The bytes reach the disk, then one small write changes the header: that is the commit.", "Readers find the old state or the new one, never a mixture.",
         [("header", 66, "fresh on-new"), old[0], ("dead", 74, "dead on-line"), ("dead", 54, "dead on-line"), ("dead", 58, "dead on-line"), *new]),
    ]  # fmt: skip
    for n, (title, words, parts) in enumerate(steps):
        y = 16 + 118 * n
        p.text(10, y + 6, title, "ink bold")
        p.text(10, y + 24, words, "soft small")
        _file(p, 10, y + 40, parts)
    for n, target in enumerate((269, 269, 473)):
        y = 16 + 118 * n + 76
        p.line(
            (43, y),
            (43, y + 12),
            (target, y + 12),
            kind=f"none on-{'new' if n == 2 else 'cold'}",
            more='stroke-width="1.6"',
        )
        p.arrow((target, y + 12), (target, y + 1), kind="new" if n == 2 else "cold")
    return p


def sparse() -> Picture:
    """Draw a commit in a directory."""
    p = Picture(760, 176)
    p.text(10, 20, "x.b2nd/ before", "ink bold")
    p.text(400, 20, "x.b2nd/ after a[5] = 7", "ink bold")
    for x, index, extra in ((10, "0 -> 0, 1 -> 1", False), (400, "0 -> 0, 1 -> 2", True)):
        p.box(x, 34, 150, 44, f"chunks.b2frame\n{index}", "fresh on-new" if extra else "block on-cold")
        names = ["00000000.chunk", "00000001.chunk", "00000002.chunk"][: 3 if extra else 2]
        for n, name in enumerate(names):
            kind = "fresh on-new" if n == 2 else "dead on-line" if extra and n == 1 else "block on-line"
            p.box(x + 200, 34 + 40 * n, 124, 30, name, kind)
        for n in (0, 2) if extra else (0, 1):
            p.arrow((x + 152, 56), (x + 197, 49 + 40 * n), kind="soft")
    p.arrow((340, 56), (392, 56))
    p.text(
        10,
        164,
        "The new index replaces the old one in one step: a rename on disk, one PUT on an object store.",
        "soft small",
    )
    return p


def snapshots() -> Picture:
    """Draw two states of one file, and the chunks that they share."""
    p = Picture(760, 236)
    p.text(10, 20, "waves.b2nd", "ink bold")
    p.text(10, 37, 'a.snapshot("spin-up"), and then a[5] = 7', "soft small")
    y = 104
    parts = [
        ("header", 66, "fresh on-new"), ("chunk 0", 74, "block on-line"), ("chunk 1", 74, "block on-cold"),
        ("chunk 2", 74, "block on-line"), ("spin-up", 74, "block on-cold"), ("chunk 1", 74, "fresh on-new"),
        ("index", 60, "fresh on-new"), ("trailer", 66, "fresh on-new"),
    ]  # fmt: skip
    middles = []
    x = 10.0
    for _, width, _ in parts:
        middles.append(x + width / 2)
        x += width + 2
    _file(p, 10, y, parts)
    # The kept index refers to chunks 0, 1 and 2, the latest one to chunk 0, the new chunk 1 and chunk 2.
    kept, latest = middles[4], middles[6]
    p.line((kept, y), (kept, y - 22), (middles[1] - 8, y - 22), kind="none on-cold", more='stroke-width="1.6"')
    for n in (1, 2, 3):
        p.arrow((middles[n] - 8, y - 22), (middles[n] - 8, y - 2), kind="cold")
    p.text(middles[3] + 24, y - 28, "the state that has a name", "cold small")
    p.line((latest, y + 34), (latest, y + 56), (middles[1] + 8, y + 56), kind="none on-new", more='stroke-width="1.6"')
    for n in (1, 3, 5):
        p.arrow((middles[n] + 8, y + 56), (middles[n] + 8, y + 36), kind="new")
    p.text(middles[5] - 26, y + 74, "the latest state", "new small")
    p.text(10, 210, "Both states use chunks 0 and 2. The snapshot holds only the old chunk 1, and its index.", "ink")
    p.text(10, 227, "Other software finds the latest state alone.", "soft small")
    return p


def simulation() -> Picture:
    """Draw steps, commits, and a kill."""
    p = Picture(760, 190)
    p.text(10, 20, "out.append(state), a commit every 50 steps", "ink bold")
    x0, w = 30, 1.45
    for n in range(3):
        p.rect(x0 + n * 50 * w * 2, 50, 50 * w * 2 - 3, 40, "fresh on-new", 'rx="4"')
        p.text(x0 + (n * 50 + 25) * w * 2, 75, f"steps {50 * n} to {50 * n + 49}", "ink small", "middle")
        p.arrow((x0 + (n + 1) * 50 * w * 2 - 2, 108), (x0 + (n + 1) * 50 * w * 2 - 2, 94), kind="new")
        p.text(x0 + (n + 1) * 50 * w * 2 - 2, 122, "commit", "new small", "middle")
    x = x0 + 150 * w * 2
    p.rect(x, 50, 84, 40, "warm on-hot", 'rx="4" stroke-dasharray="4 3"')
    p.text(x + 42, 75, "150 to 178", "ink small", "middle")
    p.text(x + 96, 66, "killed", "hot bold")
    p.text(x + 96, 83, "kill -9, power, quota", "soft small")
    p.arrow((x + 42, 140), (x + 42, 94))
    p.text(x + 30, 154, "the next run begins here: len(run) == 150", "ink small")
    p.text(x0, 152, "Readers see 50, 100, 150 steps.", "soft small")
    p.text(
        x0,
        176,
        "What was committed stays. What was not is ignored by readers, and the next writer removes it.",
        "soft small",
    )
    return p


def parallel() -> Picture:
    """Draw workers and one commit."""
    p = Picture(760, 226)
    p.text(10, 20, "b2array.from_dask(x, url)", "ink bold")
    for n in range(4):
        p.box(10, 36 + 44 * n, 130, 36, f"piece {n} of x", "chunk on-line")
        p.arrow((142, 54 + 44 * n), (196, 54 + 44 * n))
        p.box(200, 36 + 44 * n, 130, 36, f"worker {n % 2}: encode", "block on-line")
        p.arrow((332, 54 + 44 * n), (386, 54 + 44 * n))
        p.box(390, 36 + 44 * n, 130, 36, f"chunks of piece {n}", "warm on-hot")
        p.line((522, 54 + 44 * n), (574, 54 + 44 * n), (574, 120))
    p.arrow((574, 120), (606, 120), kind="new")
    p.box(610, 92, 138, 56, "one index:\nthe commit", "fresh on-new")
    p.text(455, 222, "no reader looks here yet", "soft small", "middle")
    p.text(679, 168, "all or nothing", "soft small", "middle")
    return p


def objects() -> Picture:
    """Draw an array on an object store."""
    p = Picture(760, 226)
    p.text(10, 20, "s3://bucket/run.b2nd", "ink code bold")
    p.box(10, 36, 170, 40, "chunks.b2frame:\nthe index", "block on-cold")
    for n in range(4):
        p.box(10, 86 + 34 * n, 170, 28, f"0000000{n}.chunk", "warm on-hot" if n in (1, 2) else "block on-line")
    p.text(260, 20, "a reader", "ink bold")
    p.text(260, 56, "open: GET the index", "ink")
    p.arrow((254, 52), (184, 52), kind="cold")
    p.text(260, 124, "a[100:110]: GET ranges of two chunks,\nat the same time", "ink")
    p.arrow((254, 134), (184, 134), kind="hot")
    p.text(520, 20, "a writer", "ink bold")
    p.text(520, 56, "PUT new chunk objects,\nthen PUT the index\nIf-Match: the version it read", "ink")
    p.arrow((514, 86), (430, 86), (430, 66), (184, 66), kind="new")
    p.text(
        520,
        134,
        "Another writer was first?\nThe store says 412; the changes are\nput on top of the newer index.",
        "soft small",
    )
    return p


def frame() -> Picture:
    """Draw the bytes of a frame, with what b2array adds."""
    p = Picture(760, 396)
    p.text(10, 20, "A contiguous frame", "ink bold")
    p.text(170, 20, "blue: Blosc2; green: what b2array adds, where other readers see nothing or skip it", "soft small")
    x = 10.0
    for words, w, kind in [("header", 84, "block on-line"), ("chunk 0", 96, "block on-line"), ("checks", 54, "fresh on-new"),
                           ("chunk 1", 96, "block on-line"), ("checks", 54, "fresh on-new"), ("...", 40, "chunk on-line"),
                           ("index", 72, "block on-line"), ("trailer", 220, "block on-line")]:  # fmt: skip
        p.box(x, 36, w, 38, words, kind)
        x += w + 2
    p.line((96, 76), (10, 112), more='stroke-dasharray="3 3"')
    p.line((192, 76), (366, 112), more='stroke-dasharray="3 3"')
    p.text(10, 106, "", "soft")
    p.text(10, 132, "A chunk", "ink bold")
    x = 10.0
    for words, w in [
        ("header\n32 bytes", 84),
        ("block starts\n4 bytes each", 104),
        ("dictionary\n(optional)", 84),
        ("block 0", 70),
        ("block 1", 70),
        ("...", 34),
    ]:
        p.box(x, 142, w, 44, words, "block on-line")
        x += w + 2
    p.text(476, 132, "Its checks", "new bold")
    x = 476.0
    for words, w in [
        ("b2ck\nversion", 58),
        ("blocks\n4 bytes", 58),
        ("CRC-32\nof the head", 84),
        ("CRC-32s of\nthe blocks", 78),
    ]:
        p.box(x, 142, w, 44, words, "fresh on-new")
        x += w + 2
    p.text(10, 222, "The header", "ink bold")
    x = 10.0
    for words, w, kind in [("b2frame", 70, "block on-line"), ("lengths, codec,\nlevel, filters", 116, "block on-line"),
                           ("threads: 0\nmarks b2array", 104, "fresh on-new"), ("metalayer b2nd:\nshape, chunks, blocks, dtype", 210, "block on-line"),
                           ("your meta=", 90, "block on-line")]:  # fmt: skip
        p.box(x, 232, w, 44, words, kind)
        x += w + 2
    p.text(10, 312, "The trailer", "ink bold")
    x = 10.0
    for words, w, kind in [("attributes, each in\na metalayer of its own", 168, "block on-line"),
                           ("metalayer b2array: fill value, dims,\nsizes of blocks, lost chunks, ...", 256, "fresh on-new"),
                           ("length", 60, "block on-line"), ("fingerprint, type 3:\n16 bytes of BLAKE2b", 160, "fresh on-new")]:  # fmt: skip
        p.box(x, 322, w, 44, words, kind)
        x += w + 2
    p.text(
        10,
        388,
        "The fingerprint covers header, index and trailer. It changes with every commit, and names the state.",
        "soft small",
    )
    return p


def group() -> Picture:
    """Draw a group, its files, and a transaction."""
    p = Picture(760, 190)
    p.text(10, 20, "the group", "ink bold")
    for n, (depth, words) in enumerate([(0, "/"), (1, "air"), (2, "temperature"), (1, "time")]):
        p.text(14 + 26 * depth, 48 + 28 * n, words, "ink code")
        if depth:
            p.line((26 * depth - 2, 48 + 28 * n - 4), (26 * depth + 8, 48 + 28 * n - 4))
    p.line((24, 56), (24, 128))
    p.line((50, 84), (50, 100))
    p.text(190, 20, "station.b2d/", "ink code bold")
    for n, (name, kind) in enumerate(
        [("air/temperature.b2nd", "block on-line"), ("time.b2nd", "block on-line"), (".b2group", "fresh on-new")]
    ):
        p.box(190, 34 + 44 * n, 170, 34, name, kind)
    p.text(400, 20, "a transaction", "ink bold")
    steps = [
        "1  new states, where no reader looks yet",
        "2  a new manifest names them: the commit",
        "3  each array gets its new index",
    ]
    for n, words in enumerate(steps):
        p.text(440, 56 + 44 * n, words, "new bold" if n == 1 else "ink")
    p.arrow((432, 52), (364, 52))
    p.line((432, 52), (380, 52), (380, 95))
    p.arrow((380, 95), (364, 95))
    p.arrow((432, 96), (400, 96), (400, 139), (364, 139), kind="new")
    p.text(190, 180, "Readers of the group see all arrays before the transaction, or all after it.", "soft small")
    return p


def packages() -> Picture:
    """Draw the packages in layers; each imports only from those below it."""
    p = Picture(760, 552)
    layers = [
        [("tools", "the program; verify, repair", 632)],
        [("exchange", "arrays to and from other formats", 420), ("xarray_io", "datasets and trees", 210)],
        [("group", "named arrays, one commit", 632)],
        [("array", "what users hold: NDArray and the functions that make one", 632)],
        [("display", "tables", 200), ("compute", "reductions, views, what reads share", 430)],
        [("commit", "the next state; the only package that changes a store", 632)],
        [("catalog", "what the manifest of a group says; reads only", 632)],
        [("frame", "one committed state, and how it is read", 420), ("bloscpack", ".blp files", 210)],
        [("format", "what a frame says; no I/O", 632)],
        [("codec", "one chunk and its items; no I/O", 632)],
        [("grid", "whole numbers", 209), ("store", "bytes under names", 210), ("threads", "the workers", 209)],
        [("ground", "errors, config, buffers, printable, progress", 632)],
    ]  # fmt: skip
    for row, layer in enumerate(layers):
        x, y = 10.0, 8 + 45 * row
        for name, words, width in layer:
            p.rect(x, y, width, 38, "chunk on-line" if row < len(layers) - 1 else "dead on-line", 'rx="5"')
            p.text(x + 12, y + 24, name, "ink code bold")
            p.text(x + 96, y + 24, words, "soft small")
            x += width + 2
    p.arrow((700, 20), (700, 530))
    p.text(714, 272, "imports", "soft small")
    return p


PICTURES: dict[str, Callable[[], Picture]] = {
    "overview": overview, "grids": grids, "choose": choose, "read": read, "commit": commit, "sparse": sparse,
    "simulation": simulation, "parallel": parallel, "objects": objects, "frame": frame, "packages": packages, "group": group,
    "snapshots": snapshots,
}  # fmt: skip


def main() -> None:
    """Write the pictures that are named, or all."""
    for name in sys.argv[1:] or PICTURES:
        (FOLDER / f"{name}.svg").write_text(PICTURES[name]().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
