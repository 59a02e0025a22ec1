"""Frames of both libraries, and how to damage them."""

from __future__ import annotations

import blosc2
import numpy as np

import b2array
from b2array.codec import chunk
from b2array.frame.source import FRAME_NAME

LAYOUTS = ("contiguous", "sparse")
RNG = np.random.default_rng(0)


def noise(rows=40):
    return RNG.random((rows, 16))


def write(path, data, layout, **options):
    options = {"chunks": (8, 16), "blocks": (2, 8), "attrs": {"unit": "K"}, **options}
    return b2array.asarray(data, url=path, layout=layout, **options)


def write_stock(path, data, layout, mode="w"):
    options = {"chunks": (8, 16), "blocks": (2, 8), "urlpath": str(path), "contiguous": layout == "contiguous"}
    s = blosc2.asarray(data, **options, mode=mode)
    s.schunk.vlmeta["unit"] = "K"


def place(path, n, where=0):
    found = b2array.open_schunk(path)._handle.source.locate(n)
    return (path / found.name if found.name else path), found.start + where


def index_file(path):
    return path / FRAME_NAME if path.is_dir() else path


def flip(file, at, by=0x10):
    raw = bytearray(file.read_bytes())
    raw[at] ^= by
    file.write_bytes(raw)


def kinds(report):
    return {(problem.kind, problem.chunk) for problem in report.problems}


def record_at(path, n):
    file, start = place(path, n)
    return file, start + chunk.unpack_head(file.read_bytes()[start:]).header.cbytes
