"""Changes to an array, step by step, and what must be found after each: for tests in which something fails."""

from __future__ import annotations

import numpy as np

import b2array

DATA = np.random.default_rng(0).integers(0, 1000, (6, 200), dtype="i4")
NOISE = np.random.default_rng(1).bytes(2**13)
OPTIONS = {"chunks": (2, 200), "blocks": (2, 100)}

Contents = dict[str, object] | None


class Story:
    """Changes to one array, and what it must hold after each."""

    def __init__(self, url: str, layout: str, options: dict | None = None) -> None:
        self.url, self.layout, self.options = url, layout, options or {}
        self.a: b2array.NDArray | None = None

    def create(self) -> None:
        self.a = b2array.asarray(
            DATA, url=self.url, layout=self.layout, storage_options=self.options, attrs={"n": 0}, **OPTIONS
        )

    def assign(self) -> None:
        self.a[0:2] = DATA[0:2] + 1

    def assign_a_part(self) -> None:
        self.a[3, 7:50] = -1

    def transact(self) -> None:
        with self.a.transaction():
            self.a[4:6] = self.a[2:4]
            self.a[1, 0] = self.a[1, 0] + 5
            self.a.attrs["n"] = 1

    def reopen(self) -> None:
        self.a = b2array.open(self.url, mode="r+", storage_options=self.options)

    def fill(self) -> None:
        self.a[...] = 9

    def read(self) -> None:
        assert (self.a[...] == 9).all()
        assert (self.a[3, 5:120] == 9).all()

    STEPS = ("create", "assign", "assign_a_part", "transact", "reopen", "fill", "read")

    def found(self) -> Contents:
        try:
            a = b2array.open(self.url, storage_options=self.options)
        except FileNotFoundError:
            return None
        return {"values": a[...].tobytes(), "n": a.attrs["n"]}


class ChunkStory(Story):
    """Changes to the sequence of chunks."""

    def create(self) -> None:
        self.a = b2array.create_schunk(
            self.url, chunksize=800, typesize=4, layout=self.layout, storage_options=self.options
        )

    def append(self) -> None:
        self.a.append_data(DATA[0])

    def append_another(self) -> None:
        self.a.append_data(DATA[1])

    def insert(self) -> None:
        self.a.insert_data(0, DATA[2])

    def update(self) -> None:
        self.a.update_data(1, DATA[3])

    def reopen(self) -> None:
        self.a = b2array.open_schunk(self.url, mode="r+", storage_options=self.options)

    def reorder(self) -> None:
        self.a.reorder([2, 0, 1])

    def delete(self) -> None:
        self.a.delete_chunk(1)

    def read(self) -> None:
        assert self.a.decompress_chunk(0) == DATA[1].tobytes()

    STEPS = ("create", "append", "append_another", "insert", "update", "reopen", "reorder", "delete", "read")

    def found(self) -> Contents:
        try:
            s = b2array.open_schunk(self.url, storage_options=self.options)
        except FileNotFoundError:
            return None
        return {"chunks": [s.decompress_chunk(n) for n in range(s.nchunks)]}


class SnapshotStory(Story):
    """Changes to an array, to the states that it keeps, and to which of them it shows."""

    def keep(self) -> None:
        self.a.snapshot("first", "before all")

    def describe(self) -> None:
        self.a.attrs["noise"] = NOISE  # a kept state of so many bytes has an object for itself in a directory

    def fill_a_part(self) -> None:
        self.a[1:4] = 9

    def keep_in_a_transaction(self) -> None:
        with self.a.transaction():
            self.a[0, 0] = -1
            self.a.snapshot("second")

    def go_back(self) -> None:
        self.a.restore("first")

    def drop(self) -> None:
        self.a.drop_snapshot("first")

    STEPS = (
        "create",
        "keep",
        "fill_a_part",
        "describe",
        "keep_in_a_transaction",
        "go_back",
        "reopen",
        "drop",
        "read_nothing",
    )

    def read_nothing(self) -> None:
        assert self.a.shape == DATA.shape

    def found(self) -> Contents:
        try:
            a = b2array.open(self.url, storage_options=self.options)
        except FileNotFoundError:
            return None
        kept = {
            each.name: (each.message, b2array.open(self.url, at=each.name, storage_options=self.options)[...].tobytes())
            for each in a.snapshots
        }
        return {"values": a[...].tobytes(), "kept": kept}
