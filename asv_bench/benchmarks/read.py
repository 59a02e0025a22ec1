"""Opening an array in a local file that the system has in memory, and reading it."""

from pathlib import Path

import numpy as np

import b2array
from b2array import config
from b2array.frame import cache

from . import BLOCKS, CHUNKS, CODECS, field


def _url(codec: str) -> str:
    return f"{codec}.b2nd"


def _write(codec: str) -> None:
    b2array.asarray(field(), url=_url(codec), chunks=CHUNKS, blocks=BLOCKS, cparams=b2array.CParams(codec))


class Read:
    """Parts of all sizes, each decoded anew."""

    params = CODECS
    param_names = ("codec",)

    def setup_cache(self) -> None:
        for codec in CODECS:
            _write(codec)

    def setup(self, codec: str) -> None:
        config.cache_bytes = 0
        self.array = b2array.open(_url(codec))

    def time_all(self, codec: str) -> None:
        self.array[...]

    def time_box(self, codec: str) -> None:
        self.array[20:60, 100:180, 30:110]

    def time_slab(self, codec: str) -> None:
        self.array[:, 128, :]

    def time_strided(self, codec: str) -> None:
        self.array[::8, ::8, ::8]

    def time_point(self, codec: str) -> None:
        self.array[70, 200, 11]

    def peakmem_all(self, codec: str) -> None:
        self.array[...]


KEYS = {
    "slab": (60,),
    "box": (slice(20, 60), slice(100, 180), slice(30, 110)),
    "point": (70, 200, 11),
}


class ReadFirst:
    """The first read of a handle, and the same one again, with the default settings."""

    params = tuple(KEYS)
    param_names = ("pattern",)
    number = 1
    warmup_time = 0
    repeat = 20

    def setup_cache(self) -> None:
        _write("zstd")

    def setup(self, pattern: str) -> None:
        cache.blocks = cache.Cache()
        self.array = b2array.open(_url("zstd"))
        self.warm = b2array.open(_url("zstd"))
        self.key = KEYS[pattern]

    def time_just_opened(self, pattern: str) -> None:
        self.array[self.key]

    def time_again(self, pattern: str) -> None:
        self.warm[self.key]


class ReadCached:
    """Items one after another, out of the cache of decoded blocks."""

    def setup_cache(self) -> None:
        _write("lz4")

    def setup(self) -> None:
        self.array = b2array.open(_url("lz4"))

    def time_rows(self) -> None:
        for i in range(64):
            self.array[i, 10, :32]


class Open:
    """From a path, or from bytes, to an array that has not read any chunk."""

    params = (100, 10_000, 100_000)
    param_names = ("chunks",)

    def setup_cache(self) -> None:
        for chunks in self.params:
            array = b2array.zeros(chunks, "i8", url=f"{chunks}.b2nd", chunks=1, blocks=1)
            array[:: max(1, chunks // 500)] = 1

    def setup(self, chunks: int) -> None:
        self.frame = Path(f"{chunks}.b2nd").read_bytes()

    def time_file(self, chunks: int) -> None:
        b2array.open(f"{chunks}.b2nd")

    def time_bytes(self, chunks: int) -> None:
        b2array.from_bytes(self.frame)


class OpenGroup:
    """Fifty variables of a group."""

    def setup_cache(self) -> None:
        with b2array.open_group("group.b2d", mode="w") as group:
            for n in range(50):
                group[f"v{n}"] = np.arange(1000.0)

    def time_members(self) -> None:
        group = b2array.open_group("group.b2d")
        for name in group:
            group[name].shape  # noqa: B018
