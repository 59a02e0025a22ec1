"""Compression parameters are checked when they are made, and say what headers need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest
from chunks import CODECS, STOCK_SPLITMODES

import b2array
from b2array import codecs, filters
from b2array.codec.chunk_header import ChunkHeader, CodecId
from b2array.codec.cparams import CParams, resolve_cparams


def test_each_parameter_has_one_default() -> None:
    params = CParams()
    assert (params.codec_id, params.clevel, params.filters) == (CodecId.ZSTD, 2, "auto")
    assert (params.filter_slots, params.meta_slots) == ((0, 0, 0, 0, 0, 1), (0,) * 6)
    assert not params.use_dict
    assert CParams("zstd") == CParams(CodecId.ZSTD) == resolve_cparams(None) == resolve_cparams("zstd") == params
    assert b2array.zeros(3).cparams == params
    assert CParams(absolute_error=0.1) == replace(params, absolute_error=0.1)
    assert CParams(absolute_error=0.1).without_bounds() == params


@pytest.mark.parametrize("codec", ["blosclz", "lz4", "lz4hc", "zlib"])
def test_other_codecs_work_at_the_level_of_stock(codec: str) -> None:
    params = CParams(codec)
    assert (params.clevel, params.filters) == (5, "auto")
    assert params == CParams(codec, clevel=-1) == CParams(codec, 5)
    assert replace(params, clevel=0).clevel == 0


def test_one_filter_may_be_given_by_its_name() -> None:
    assert CParams(filters="bitshuffle") == CParams(filters=("bitshuffle",))
    assert resolve_cparams({"filters": "shuffle"}).filters == ("shuffle",)
    with pytest.raises(ValueError, match="sort"):
        CParams(filters="sort")


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("codec", "gzip", ValueError),
        ("codec", 133, ValueError),
        ("codec", None, TypeError),
        ("clevel", 10, ValueError),
        ("clevel", -2, ValueError),
        ("codec_meta", 256, ValueError),
        ("splitmode", "sometimes", ValueError),
        ("filters", ("shuffle",) * 7, ValueError),
        ("filters", ("sort",), ValueError),
        ("filters", (None,), TypeError),
        ("filters_meta", (1, 2), ValueError),
        ("filters_meta", (256,), ValueError),
        ("filters_meta", (-129,), ValueError),
        ("nthreads", -1, ValueError),
        ("nthreads", 2**15, ValueError),
        ("clevel", 2.5, TypeError),
        ("clevel", "5", TypeError),
        ("codec_meta", 1.5, TypeError),
        ("nthreads", 2.0, TypeError),
        ("filters_meta", (1.5,), TypeError),
        ("use_dict", "no", TypeError),
        ("filters", "s", ValueError),
        ("filters_meta", "4", TypeError),
    ],
)
def test_what_cannot_be_meant_is_refused(field: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        CParams(**{field: value})
    with pytest.raises(error):
        replace(CParams(), **{field: value})


@pytest.mark.parametrize("codec", ["blosclz", "zlib"])
def test_dictionaries_need_a_codec_that_knows_them(codec: str) -> None:
    with pytest.raises(ValueError, match=f"not '{codec}'"):
        CParams(codec, use_dict=True)


def test_values_cannot_be_changed_and_lists_are_taken() -> None:
    params = CParams(filters=["delta", "shuffle"], filters_meta=[0, 4])
    assert params == CParams(filters=("delta", "shuffle"), filters_meta=(0, 4))
    assert hash(params) == hash(CParams(filters=("delta", "shuffle"), filters_meta=(0, 4)))
    with pytest.raises(FrozenInstanceError):
        params.clevel = 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"filters_meta": (0,)}),
        ({"codec": "lz4"}, {"codec": 1}),
        ({"filters": ("delta", "shuffle")}, {"filters": (3, np.int8(1))}),
        ({"filters": ("trunc_prec",), "filters_meta": (-10,)}, {"filters": ("trunc_prec",), "filters_meta": (246,)}),
        ({"clevel": 3, "use_dict": True}, {"clevel": np.int64(3), "use_dict": np.True_}),
    ],
)
def test_the_same_parameters_are_equal_however_they_are_given(one: dict[str, Any], other: dict[str, Any]) -> None:
    a, b = CParams(**one), CParams(**other)
    assert a == b
    assert hash(a) == hash(b)
    assert repr(a) == repr(b)


@pytest.mark.parametrize("given", [["lz4"], b"lz4", 5])
def test_parameters_of_another_kind_are_refused_by_name(given: Any) -> None:
    for make in (
        lambda: b2array.create(None, 3, cparams=given),
        lambda: b2array.create_schunk(chunksize=8, typesize=8, cparams=given),
        lambda: b2array.zeros(3).copy(cparams=given),
        lambda: b2array.compress(b"data", cparams=given),
    ):
        with pytest.raises(TypeError, match=f"CParams.*not {type(given).__name__}"):
            make()


def test_what_a_frame_says_is_what_it_was_made_with() -> None:
    for params in (CParams(), CParams("lz4", clevel=1, splitmode="blosc2"), CParams(1, filters=(1,))):
        assert b2array.zeros(3, cparams=params).cparams == params


def test_filters_and_metas_stand_in_the_last_slots() -> None:
    params = CParams(filters=("trunc_prec", "delta", "shuffle"), filters_meta=(-10,))
    assert params.filter_slots == (0, 0, 0, 4, 3, 1)
    assert params.meta_slots == (0, 0, 0, 246, 0, 0)


@pytest.mark.parametrize("other", [5, ["lz4"], b"lz4", object])
def test_parameters_of_another_kind_are_refused_by_name_before_anything_is_written(other: Any, tmp_path: Path) -> None:
    source, path = tmp_path / "source.b2nd", tmp_path / "a"
    array = b2array.zeros(3, url=source)
    before = list(tmp_path.iterdir())
    verbs: list[Callable[[], object]] = [
        lambda: b2array.zeros(3, url=path, cparams=other),
        lambda: b2array.create_schunk(path, chunksize=8, cparams=other),
        lambda: b2array.compress(b"abc", cparams=other),
        lambda: b2array.bloscpack.pack(array[:], path, cparams=other),
        lambda: array.copy(path, cparams=other),
        lambda: b2array.convert(source, f"{path}.zarr", cparams=other),
    ]
    for verb in verbs:
        with pytest.raises(TypeError, match=f"^cparams must be a b2array.CParams.* not {type(other).__name__}$"):
            verb()
    assert list(tmp_path.iterdir()) == before


def test_a_bytedelta_without_a_number_of_streams_has_as_many_as_the_item_has_bytes() -> None:
    assert CParams(filters=("shuffle", "bytedelta")).metas_for(8) == (0, 0, 0, 0, 0, 8)
    assert CParams(filters=("shuffle", "bytedelta"), filters_meta=(0, 2)).metas_for(8) == (0, 0, 0, 0, 0, 2)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", ["shuffle", "bitshuffle", "delta", None])
def test_blocks_are_split_where_stock_splits_them(codec: str, name: str | None) -> None:
    filters_used = () if name is None else (name,)
    for splitmode, clevel, typesize in [
        (s, c, t) for s in STOCK_SPLITMODES for c in (1, 5, 6, 9) for t in (1, 2, 8, 16, 17)
    ]:
        params = CParams(codec, clevel=clevel, filters=filters_used, splitmode=splitmode)
        for items in (8, 31, 32, 200):
            data = np.arange(items * 3 * typesize, dtype="u4").astype("u1") // 3
            made = blosc2.compress2(
                data.tobytes(),
                typesize=typesize,
                blocksize=items * typesize,
                codec=blosc2.Codec(params.codec_id),
                clevel=clevel,
                filters=[blosc2.Filter(fid) for fid in params.filter_slots if fid],
                filters_meta=[0] * len(filters_used),
                splitmode=STOCK_SPLITMODES[splitmode],
                nthreads=1,
            )
            header = ChunkHeader.unpack(made)
            if header.has_streams and typesize > 1 and header.blocksize == items * typesize:
                assert params.splits(typesize, header.blocksize) == (header.nstreams > 1), (splitmode, clevel, typesize)


@pytest.mark.parametrize("splitmode", ["auto", "always", "never", "blosc2"])
def test_items_of_one_byte_and_torn_items_are_never_split(splitmode: str) -> None:
    params = CParams("lz4", splitmode=splitmode)
    assert not params.splits(1, 1000)
    assert not params.splits(8, 1001)


def test_codecs_and_filters_of_the_user_are_known_once_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "_registry", {})
    monkeypatch.setattr(filters, "_registry", {}, raising=False)
    with pytest.raises(ValueError, match="unknown codec"):
        CParams(200)
    codecs.register(200, lambda *_: None)
    assert CParams(200).codec_id == 200


def test_parameters_may_be_a_name_or_what_python_blosc2_takes() -> None:
    shuffled = CParams("lz4", filters="shuffle")  # which stock says for itself
    theirs = {"codec": blosc2.Codec.LZ4, "clevel": 1, "filters": [blosc2.Filter.BITSHUFFLE], "typesize": 8}
    a, b = CParams("lz4"), CParams("lz4", clevel=1, filters=("bitshuffle",))
    kept = [blosc2.Filter.TRUNC_PREC, blosc2.Filter.NOFILTER, blosc2.Filter.SHUFFLE]
    for given, expected in (
        ("lz4", a),
        ({"codec": "lz4"}, a),
        (theirs, b),
        ({}, CParams()),
        (blosc2.CParams(codec=blosc2.Codec.LZ4, nthreads=1), shuffled),
        ({"filters": kept, "filters_meta": [10, 0, 0]}, CParams(filters=("trunc_prec", "shuffle"), filters_meta=(10,))),
        ({"splitmode": blosc2.SplitMode.NEVER_SPLIT, "use_dict": 0}, CParams(splitmode="never")),
    ):
        assert b2array.zeros(3, cparams=given).cparams == expected, given
        assert b2array.create_schunk(chunksize=8, typesize=8, cparams=given).cparams == expected
        assert b2array.copy(b2array.zeros(3), cparams=given).cparams == expected
    with pytest.raises(TypeError, match="cparams has no level"):
        b2array.zeros(3, cparams={"level": 9})


def test_frames_have_the_split_modes_that_python_blosc2_numbers(tmp_path: Path) -> None:
    for mode in blosc2.SplitMode:
        path = str(tmp_path / f"{mode.value}.b2nd")
        blosc2.zeros((4,), cparams=blosc2.CParams(splitmode=mode), urlpath=path)
        assert b2array.zeros(3, cparams={"splitmode": mode}).cparams.splitmode == b2array.open(path).cparams.splitmode
