"""Making arrays, in memory and in local files, and changing them."""

import b2array

from . import BLOCKS, CHUNKS, CODECS, SHAPE, field


def codec_of(name: str) -> b2array.CParams:
    return b2array.CParams(name)


class Write:
    """A whole array, or parts of it, with everything that a commit takes."""

    params = CODECS
    param_names = ("codec",)

    def setup(self, codec: str) -> None:
        self.data = field()
        self.layout = {"chunks": CHUNKS, "blocks": BLOCKS, "cparams": b2array.CParams(codec)}
        self.target = b2array.create("target.b2nd", SHAPE, self.data.dtype, overwrite=True, **self.layout)

    def time_asarray_file(self, codec: str) -> None:
        b2array.asarray(self.data, url="new.b2nd", overwrite=True, **self.layout)

    def time_asarray_memory(self, codec: str) -> None:
        b2array.asarray(self.data, **self.layout)

    def time_assign_all(self, codec: str) -> None:
        self.target[...] = self.data

    def time_assign_box(self, codec: str) -> None:
        self.target[20:60, 100:180, 30:110] = 1.0

    def peakmem_asarray_file(self, codec: str) -> None:
        b2array.asarray(self.data, url="new.b2nd", overwrite=True, **self.layout)

    def track_ratio(self, codec: str) -> float:
        return b2array.asarray(self.data, **self.layout).cratio

    track_ratio.unit = "times smaller"


class Steps:
    """A simulation's output: planes, rows and items into chunks that hold more."""

    params = (("lz4", "zstd"), ("planes", "chunks that are chosen"))
    param_names = ("codec", "chunks")

    def setup(self, codec: str, chunks: str) -> None:
        shape = (100, 256, 256)
        cut = (1, -1, -1) if chunks == "planes" else "auto"
        self.array = b2array.zeros(shape, "f4", url="steps.b2nd", overwrite=True, chunks=cut, cparams=codec_of(codec))
        self.plane = field()[0].astype("f4")

    def time_plane(self, codec: str, chunks: str) -> None:
        self.array[50] = self.plane

    def time_row(self, codec: str, chunks: str) -> None:
        self.array[:100, 100] = self.plane[:100]

    def time_ten_planes_in_a_transaction(self, codec: str, chunks: str) -> None:
        with self.array.transaction() as inside:
            for n in range(10):
                inside[n] = self.plane

    def time_append(self, codec: str, chunks: str) -> None:
        self.array.append(self.plane[None])


class Codecs:
    """One chunk in memory, without the array around it."""

    params = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
    param_names = ("codec",)

    def setup(self, codec: str) -> None:
        self.data = field()[:4]
        self.chunk = b2array.compress(self.data, cparams=codec_of(codec))

    def time_compress(self, codec: str) -> None:
        b2array.compress(self.data, cparams=codec_of(codec))

    def time_decompress(self, codec: str) -> None:
        b2array.decompress(self.chunk)


class Commit:
    """What a change costs that hardly changes anything."""

    def setup(self) -> None:
        self.array = b2array.zeros((64, 64), url="small.b2nd", overwrite=True)

    def time_item(self) -> None:
        self.array[1, 2] = 3

    def time_attribute(self) -> None:
        self.array.attrs["name"] = "value"


class Create:
    def time_zeros(self) -> None:
        b2array.zeros((10_000, 10_000, 1_000), dtype="f8")

    def time_full(self) -> None:
        b2array.full((1_000, 1_000, 100), 1.5)
