"""Opening an array in a local file that the system has in memory, and reading it."""

import b2array
from b2array import config

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

    def setup_cache(self) -> None:
        _write("lz4")
        # 4096 chunks, so that the index is long.
        b2array.ones((256, 256, 256), url="many.b2nd", chunks=(16, 16, 16), blocks=(16, 16, 16))

    def setup(self) -> None:
        self.frame = b2array.ones((64, 64)).to_bytes()

    def time_file(self) -> None:
        b2array.open(_url("lz4"))

    def time_file_of_many_chunks(self) -> None:
        b2array.open("many.b2nd")

    def time_bytes(self) -> None:
        b2array.from_bytes(self.frame)
