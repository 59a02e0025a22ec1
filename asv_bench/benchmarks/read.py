"""Reading an array from a local file that the system has in memory."""

import b2array
from b2array import config

from . import BLOCKS, CHUNKS, CODECS, field


def _url(codec: str) -> str:
    return f"{codec}.b2nd"


class Read:
    params = CODECS
    param_names = ("codec",)

    def setup_cache(self) -> None:
        data = field()
        for codec in CODECS:
            b2array.asarray(data, url=_url(codec), chunks=CHUNKS, blocks=BLOCKS, cparams=b2array.CParams(codec))

    def setup(self, codec: str) -> None:
        config.cache_bytes = 0
        self.array = b2array.open(_url(codec))

    def time_open(self, codec: str) -> None:
        b2array.open(_url(codec))

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
        b2array.asarray(field(), url=_url("lz4"), chunks=CHUNKS, blocks=BLOCKS, cparams=b2array.CParams("lz4"))

    def setup(self) -> None:
        self.array = b2array.open(_url("lz4"))

    def time_rows(self) -> None:
        for i in range(64):
            self.array[i, 10, :32]
