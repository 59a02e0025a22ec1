"""Making arrays, in memory and in local files, and changing them."""

import b2array

from . import BLOCKS, CHUNKS, CODECS, SHAPE, field


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
