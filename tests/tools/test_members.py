"""`verify`, `repair`, `vacuum` and `repack` of groups, and how results are shown."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blosc2
import dask.array as da
import fsspec
import h5py
import numpy as np
import pytest
import zarr
from damage import flip, place
from operations import READS, Killed, Operations, compare

import b2array
from b2array.array.dask import from_dask
from b2array.array.drafts import ArrayOptions
from b2array.errors import ConflictError, FormatError, ReadOnlyError, UnsupportedError
from b2array.store.open import open_store
from b2array.tools.results import Results

Run = Callable[..., tuple[int, str, str]]


def make(url: str, **options: Any) -> None:
    group = b2array.open_group(url, "w", **options)
    for name in ("a/x", "a/y", "z"):
        group.create(name, data=np.arange(600.0).reshape(20, 30), chunks=(5, 30), layout="sparse")
    group["a"].attrs["unit"] = "m"


def members(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out)["members"]
    return found


def test_a_damaged_member_hides_no_other_and_the_exit_code_is_3(run: Run) -> None:
    make("g.b2d")
    assert run("verify", "g.b2d", "--deep")[0] == 0
    flip(*place(Path("g.b2d/a/x.b2nd"), 2, 60))
    Path("g.b2d/z.b2nd/chunks.b2frame").write_bytes(b"nothing")
    code, out, err = run("verify", "g.b2d", "--deep", "--json")
    assert (code, err) == (3, "")
    found = members(out)
    assert {name: each["ok"] for name, each in found.items()} == {"a/": True, "a/x": False, "a/y": True, "z": False}
    assert [problem["chunk"] for problem in found["a/x"]["problems"]] == [2]
    code, out, err = run("repair", "g.b2d", "--json")
    assert (code, err) == (3, "")
    assert members(out)["a/x"]["lost"] == [2]
    assert members(out)["z"]["damaged"]
    for command in ("ls", "tree", "info"):
        code, out, err = run(command, "g.b2d")
        assert code == 3
        assert "z: " in err
        assert "a" in out
    code, out, _ = run("tree", "g.b2d")
    assert "y  float64" in out
    assert "z      damaged" in out


def test_a_member_that_a_server_does_not_give_hides_no_other(http: Any, tmp_path: Path) -> None:
    make(str(tmp_path / "g.b2d"))
    b2array.open_group(tmp_path / "g.b2d", "r+").consolidate()
    files = (file for file in tmp_path.rglob("*") if file.is_file() and file.suffix != ".b2lock")
    http.objects |= {file.relative_to(tmp_path).as_posix(): file.read_bytes() for file in files}
    http.statuses["g.b2d/a/y.b2nd/chunks.b2frame"] = 503
    with b2array.config.using(retries=0):
        found = b2array.verify(http.url_of("g.b2d")).members
    assert {name: each.ok for name, each in found.items()} == {"a/": True, "a/x": True, "a/y": False, "z": True}
    assert "503" in str(found["a/y"])
    assert http.url_of("g.b2d/a/y.b2nd") in str(found["a/y"])


def test_groups_that_can_only_be_read_are_not_changed(http: Any, tmp_path: Path) -> None:
    make(str(tmp_path / "g.b2d"))
    b2array.open_group(tmp_path / "g.b2d", "r+").consolidate()
    files = (file for file in tmp_path.rglob("*") if file.is_file() and file.suffix != ".b2lock")
    http.objects |= {file.relative_to(tmp_path).as_posix(): file.read_bytes() for file in files}
    for change in (b2array.repair, b2array.vacuum, b2array.repack):
        with pytest.raises(ReadOnlyError, match=r"g\.b2d can only be read"):
            change(http.url_of("g.b2d"))
    assert b2array.repair(http.url_of("g.b2d"), dry_run=True).ok


def test_an_array_of_another_format_that_a_server_does_not_give_hides_no_other(
    http: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make("g.b2d")
    b2array.convert("g.b2d", "g.zarr", zarr_format=2)
    zarr.consolidate_metadata("g.zarr", zarr_format=2)
    files = (file for file in Path("g.zarr").rglob("*") if file.is_file())
    http.objects |= {file.as_posix(): file.read_bytes() for file in files}
    http.statuses["g.zarr/a/y/0.0"] = 503
    with b2array.config.using(retries=0):
        report = b2array.verify(http.url_of("g.zarr"))
    assert {name: each.ok for name, each in report.members.items()} == {"a/x": True, "a/y": False, "z": True}
    assert "503" in str(report)
    assert not report.damaged


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_members_that_a_server_does_not_list_are_an_error_and_not_an_empty_group(
    zarr_format: int, http: Any, run: Run
) -> None:
    make("g.b2d")
    b2array.convert("g.b2d", "g.zarr", zarr_format=zarr_format)
    # Other writers do not consolidate.
    if zarr_format == 2:
        Path("g.zarr/.zmetadata").unlink()
    else:
        described = json.loads(Path("g.zarr/zarr.json").read_text())
        del described["consolidated_metadata"]
        Path("g.zarr/zarr.json").write_text(json.dumps(described))
    hints = {"g.b2d": "Group.consolidate", "g.zarr": "zarr.consolidate_metadata"}

    def publish() -> None:
        for file in (file for name in hints for file in Path(name).rglob("*") if file.is_file()):
            http.objects[file.as_posix()] = file.read_bytes()

    publish()
    for name, hint in hints.items():
        for command in ("verify", "ls", "tree", "info", "convert"):
            code, out, err = run(command, http.url_of(name), *(["copy.h5"] if command == "convert" else []))
            assert (code, out) == (1, "")
            assert hint in err
    assert not Path("copy.h5").exists()
    zarr.consolidate_metadata("g.zarr", zarr_format=zarr_format)
    b2array.open_group("g.b2d", "r+").consolidate()
    publish()
    for name in hints:
        assert {"a/x", "a/y", "z"} <= b2array.verify(http.url_of(name)).members.keys()
    assert json.loads(run("info", http.url_of("g.zarr"), "--json")[1])["cbytes"] is None  # it is not known


@pytest.mark.usefixtures("_no_cache")
def test_python_verifies_what_is_stored_behind_handles_and_urls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make("g.b2d")
    group = b2array.open_group("g.b2d")
    array, followed = group["a/x"], b2array.open("g.b2d/a/x", follow=True)
    chunks = b2array.open_schunk("g.b2d/a/x.b2nd")
    b2array.convert("g.b2d", "g.b2z")
    inside = b2array.open("g.b2z")["a/x"]
    flip(*place(Path("g.b2d/a/x.b2nd"), 2, 60))
    for each in (array, chunks, followed, "g.b2d/a/x", Path("g.b2d/a/x.b2nd")):
        assert [problem.chunk for problem in b2array.verify(each, deep=True).problems] == [2]
    wrong = {"a/": True, "a/x": False, "a/y": True, "z": True}
    for each in (group, "g.b2d"):
        assert {name: found.ok for name, found in b2array.verify(each, deep=True).members.items()} == wrong
    assert not b2array.verify(group["a"], deep=True).ok
    assert b2array.verify(group["a"], deep=True).members.keys() == {"/", "x", "y"}
    assert b2array.verify("g.b2z", deep=True).ok
    assert b2array.verify(inside, deep=True).checked == 4
    assert b2array.verify(b2array.asarray(np.arange(1000)), deep=True).checked == 1


def test_python_repairs_and_cleans_up_groups_and_their_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make("g.b2d")
    b2array.open("g.b2d/a/x", "r+")[...] = 1
    assert len(b2array.vacuum("g.b2d", grace=0, dry_run=True).members["a/x"].removed) == 4
    assert len(b2array.vacuum("g.b2d/a/x", grace=0).removed) == 4
    assert b2array.repack("g.b2d").members.keys() == {"a/", "a/x", "a/y", "z"}
    flip(*place(Path("g.b2d/z.b2nd"), 2, 60))
    assert {name: each.changed for name, each in b2array.repair("g.b2d").members.items()} == {
        "a/": False,
        "a/x": False,
        "a/y": False,
        "z": True,
    }
    with pytest.raises(FileNotFoundError, match=r"nothing\.b2d does not exist"):
        b2array.repair("nothing.b2d")


def test_vacuum_and_repack_go_through_all_members(run: Run) -> None:
    make("g.b2d")
    b2array.open("g.b2d/a/x.b2nd", "r+")[...] = 1
    b2array.asarray(np.arange(1000), url="g.b2d/flat.b2nd", chunks=(100,)).close()
    b2array.open("g.b2d/flat.b2nd", "r+")[...] = np.arange(1000)[::-1]
    assert len(members(run("vacuum", "g.b2d", "--grace", "0", "--dry-run", "--json")[1])["a/x"]["removed"]) == 4
    assert len(members(run("vacuum", "g.b2d", "--grace", "0", "--json")[1])["a/x"]["removed"]) == 4
    found = members(run("repack", "g.b2d", "--json")[1])
    assert found["flat"]["nbytes"] > 0
    assert found["z"]["nbytes"] == 0
    assert run("verify", "g.b2d", "--deep")[0] == 0
    code, out, _ = run("vacuum", "g.b2d/a/y", "--grace", "0", "--json")
    assert (code, json.loads(out)["removed"]) == (0, [])


@pytest.mark.parametrize("url", ["g.b2d", "memory://vacuumed.b2d"])
def test_vacuum_removes_what_killed_writers_left_outside_of_the_members(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(url)
    b2array.open_group(url, "r+").attrs["title"] = "all"
    fs, root = fsspec.url_to_fs(url)

    def files() -> set[str]:
        return {path for path in fs.find(root) if not path.endswith((".b2lock", ".b2group"))}

    fs.pipe(f"{root}/notes.txt", b"precious")
    before = files()
    group = b2array.open_group(url, "r+")
    if url == "g.b2d":  # elsewhere an array that is not listed may be somebody's
        monkeypatch.setattr("b2array.commit.staging.CHECKED_AFTER", 0)
        unfinished, tasks = group.transaction(), da.arange(8, chunks=4)
        changes = unfinished.__enter__()
        changes.create("new/flat", data=[1, 2])
        changes.create("new/sparse", data=[1, 2], layout="sparse")
        from_dask(tasks, f"{url}/flat.b2nd", None, ArrayOptions(), compute=False, scheduler=None)
        from_dask(tasks, f"{url}/sparse.b2nd", None, ArrayOptions(layout="sparse"), compute=False, scheduler=None)
    for path in ("a/y.b2nd.0123456789abcdef.b2tmp", "a/gone.b2nd.0123456789abcdef.b2tmp"):
        fs.pipe(f"{root}/{path}", b"left")
    left = files()
    assert "." not in b2array.vacuum(url).members
    found = b2array.vacuum(url, grace=0, dry_run=True)
    assert files() == left
    assert found == replaced(b2array.vacuum(url, grace=0), dry_run=True)
    assert "a/gone.b2nd.0123456789abcdef.b2tmp" in found.members["."].removed
    assert found.members["."].nbytes > 4
    assert files() == before
    if url == "g.b2d":
        with pytest.raises(ConflictError, match="somebody removed"):
            unfinished.__exit__(None, None, None)
        group.create("new/flat", data=[3])
    assert b2array.verify(url, deep=True).ok
    assert "." not in b2array.vacuum(url, grace=0).members


def test_a_damaged_list_of_members_is_told_beside_attributes_that_are_in_order(tmp_path: Path) -> None:
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    group["x"] = [1]
    group.attrs["title"] = "all"
    group.consolidate()
    (tmp_path / "g.b2d" / ".b2group").write_bytes(b"nothing")
    report = b2array.verify(tmp_path / "g.b2d")
    assert {name: each.ok for name, each in report.members.items()} == {".": False, "/": True, "x": True}
    assert (report.ok, report.damaged) == (False, True)


def replaced(found: Results, **changes: Any) -> Results:
    members = {name: dataclasses.replace(each, **changes) for name, each in found.members.items()}
    return dataclasses.replace(found, members=members)


def test_groups_in_object_stores_are_verified_repaired_and_vacuumed(
    run: Run, bucket: str, s3_options: dict[str, Any]
) -> None:
    url = f"s3://{bucket}/g.b2d"
    given = [part for name, value in s3_options.items() for part in ("--storage", f"{name}={json.dumps(value)}")]
    make(url, storage_options=s3_options)
    b2array.open(f"{url}/a/x.b2nd", "r+", storage_options=s3_options)[...] = 1
    removed = members(run("vacuum", url, "--grace", "0", "--json", *given)[1])["a/x"]["removed"]
    assert len([name for name in removed if name.endswith(".chunk")]) == 4
    code, out, err = run("verify", url, "--deep", "--json", *given)
    assert (code, err) == (0, "")
    assert [*members(out)] == ["a/", "a/x", "a/y", "z"]
    assert run("copy", url, "back.b2z", *given)[0] == 0
    assert run("cat", "back.b2z/a/x", "[0, :3]")[1] == "[1. 1. 1.]\n"
    assert [line.split()[0] for line in run("ls", f"{url}/a", *given)[1].splitlines()] == ["x", "y"]


@pytest.mark.parametrize("suffix", [".b2d", ".b2z"])
def test_embedded_members_are_verified(suffix: str, run: Run) -> None:
    with blosc2.TreeStore(f"stock{suffix}", mode="w", threshold=10_000) as tree:
        tree["/a/small"], tree["/large"] = np.arange(3), np.arange(50_000)
    code, out, _ = run("verify", f"stock{suffix}", "--deep", "--json")
    assert (code, [*members(out)]) == (0, ["a/small", "large"])
    assert members(out)["large"]["unchecked"] > 0
    if suffix == ".b2d":
        assert [*members(run("repair", "stock.b2d", "--json")[1])] == ["large", "embed.b2e"]


def test_damage_in_archives_and_other_formats_is_found(run: Run) -> None:
    make("g.b2d")
    for name in ("g.b2z", "g.h5", "g.zarr"):
        assert run("convert", "g.b2d", name)[0] == 0
        assert run("verify", name, "--deep")[0] == 0
    flip(Path("g.b2z"), Path("g.b2z").read_bytes().index(b"a/y.b2nd") + 1000)
    code, out, _ = run("verify", "g.b2z", "--deep", "--json")
    assert code == 3
    assert [name for name, each in members(out).items() if not each["ok"]] == ["a/y"]
    with h5py.File("g.h5") as file:
        at = file["a/y"].id.get_chunk_info(0).byte_offset
    flip(Path("g.h5"), at + 30)
    code, out, _ = run("verify", "g.h5")
    assert code == 3
    assert "  a/y: chunk: g.h5#a/y: " in out
    for command in ("repair", "vacuum", "repack"):
        for name in ("g.b2z", "g.h5", "g.zarr")[command == "vacuum" :]:  # writers leave things beside archives
            code, out, err = run(command, name)
            assert (code, out) == (1, "")
            assert f"b2array convert {name} copy.b2d" in err


def test_python_refuses_to_change_archives_and_other_formats_as_the_program_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make("g.b2d")
    for name in ("g.b2z", "g.h5"):
        b2array.convert("g.b2d", name)
        for change in (b2array.repair, b2array.repack):
            with pytest.raises(UnsupportedError, match=f"b2array convert {name} copy.b2d"):
                change(name)
    assert b2array.vacuum("g.b2z").removed == ()
    with pytest.raises(UnsupportedError, match=r"b2array convert g\.h5 copy\.b2d"):
        b2array.vacuum("g.h5")


def test_a_dataset_of_hdf5_that_cannot_be_converted_is_told_and_hides_no_other(run: Run) -> None:
    with h5py.File("g.h5", "w") as file:
        file.create_dataset("references", (2,), dtype=h5py.ref_dtype)
        file["full"] = [1, 2]
    code, _, err = run("convert", "g.h5", "g.b2d")
    assert code == 1
    assert "references: items of any length can only be text or bytes" in err
    assert b2array.open("g.b2d/full")[...].tolist() == [1, 2]


def test_what_nothing_proves_is_repaired_on_request_as_the_command_line_names_it(run: Run) -> None:
    make("g.b2d")
    index = Path("g.b2d/z.b2nd/chunks.b2frame")
    flip(index, index.stat().st_size - 60)
    code, out, _ = run("repair", "g.b2d")
    assert code == 3
    assert "--trust-order accepts" in out
    assert "trust_order" not in out
    assert run("repair", "g.b2d", "--trust-order")[0] == 0
    assert run("verify", "g.b2d", "--deep")[0] == 0


def test_a_frame_without_its_index_is_told_from_a_directory_that_is_no_group(run: Run) -> None:
    make("g.b2d")
    Path("g.b2d/z.b2nd").rename("frame")
    assert run("verify", "frame")[0] == 0
    Path("frame/chunks.b2frame").unlink()
    code, out, _ = run("verify", "frame")
    assert code == 3
    assert "1 problem\n" in out
    Path("folder").mkdir()
    for command in ("verify", "vacuum", "info", "ls", "tree"):
        code, out, err = run(command, "folder")
        assert (code, out) == (1, "")
        assert err.endswith("folder: there is no group\n")


def make_consolidated(path: Path, zarr_format: Any) -> None:
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    group.create_array("x", data=np.arange(6.0))
    group.create_group("inner").create_array("y", data=np.arange(4))
    consolidate(path)


def consolidate(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other software may not read them
        zarr.consolidate_metadata(path)


@pytest.mark.parametrize(("zarr_format", "file"), [(2, ".zarray"), (3, "zarr.json")])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_verify_looks_at_the_metadata_behind_consolidated_ones(
    tmp_path: Path, zarr_format: int, file: str, is_damaged: bool
) -> None:
    make_consolidated(tmp_path / "g.zarr", zarr_format)
    assert b2array.verify(tmp_path / "g.zarr").ok
    if is_damaged:
        (tmp_path / "g.zarr" / "inner" / "y" / file).write_text("{")
    else:
        (tmp_path / "g.zarr" / "inner" / "y" / file).unlink()
    report = b2array.verify(tmp_path / "g.zarr")
    assert not report.ok
    assert "no readable metadata describe inner/y, apart from the consolidated ones" in str(report)


def test_verify_finds_consolidated_metadata_that_are_out_of_date(tmp_path: Path) -> None:
    make_consolidated(tmp_path / "g.zarr", 3)
    zarr.open_array(tmp_path / "g.zarr" / "x", mode="r+").append(np.arange(2.0))
    assert "the consolidated metadata of x are out of date" in str(b2array.verify(tmp_path / "g.zarr"))
    consolidate(tmp_path / "g.zarr")
    assert b2array.verify(tmp_path / "g.zarr").ok


@pytest.mark.parametrize("text", ["{", "[]", '{"zarr_format": 9}', '{"zarr_format": 3, "node_type": "array"}'])
def test_damaged_metadata_of_zarr_are_an_error_about_the_format(tmp_path: Path, text: str) -> None:
    make_consolidated(tmp_path / "g.zarr", 3)
    (tmp_path / "g.zarr" / "inner" / "y" / "zarr.json").write_text(text)
    with pytest.raises(FormatError, match=r"g\.zarr#inner/y: "):
        b2array.convert(f"{tmp_path}/g.zarr#inner/y", tmp_path / "y.b2nd")


def delete(url: str) -> None:
    del b2array.open_group(url, "r+")["x"]


def replace_by_other_layout(url: str) -> None:
    b2array.open_group(url, "r+").create("x", data=np.ones(8), chunks=(2,), layout="contiguous", overwrite=True)


def verify_handle(url: str) -> Results:
    return b2array.verify(b2array.open_group(url), deep=True)


@pytest.mark.filterwarnings("ignore:.*one file in this store is rewritten")
@pytest.mark.parametrize("act", [delete, replace_by_other_layout])
@pytest.mark.parametrize("check", [b2array.verify, verify_handle, b2array.repack])
@pytest.mark.parametrize("kind", ["disk", "server"])
def test_a_member_that_is_gone_by_its_turn_is_no_failure(
    kind: str,
    check: Callable[[str], Results],
    act: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A check each night must not report members that other writers delete or replace meanwhile."""
    operations, start = Operations(), str(tmp_path) if kind == "disk" else f"memory://{tmp_path.name}"
    store = type(open_store(start))
    if kind == "server":
        compare(store, monkeypatch)
    operations.listen(store, monkeypatch, READS)
    for moment in range(100):
        url = f"{start}/{moment}.b2d"
        with b2array.open_group(url, "w").transaction() as changes:
            for name in ("a", "x", "y"):
                changes.create(name, data=np.arange(8.0), chunks=(2,), layout="sparse")
        results: list[Results] = []
        is_met = operations.meets(moment, lambda: results.append(check(url)), lambda: act(url))  # noqa: B023
        assert results[0].ok, (moment, results[0])
        assert {"a", "y"} <= {*results[0]} <= {".", "a", "x", "y"}
        if not is_met:
            break
    else:
        pytest.fail("the check took more reads than were looked at")
    assert moment > 5


@pytest.mark.filterwarnings("ignore:.*one file in this store is rewritten")
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_verify_finds_members_that_a_killed_writer_has_committed_and_not_published(
    layout: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operations, url = Operations(), f"memory://{tmp_path.name}.b2d"
    store = type(open_store(url))
    compare(store, monkeypatch)
    operations.listen(store, monkeypatch)
    group = b2array.open_group(url, "w")
    group.create("x", data=np.ones(8), chunks=(2,), layout={"contiguous": "sparse", "sparse": "contiguous"}[layout])

    def replace_all() -> None:
        group.create("x", data=np.arange(8.0), chunks=(2,), layout=layout, overwrite=True)

    def kill(_: int, name: str, call: Callable[[], object]) -> object:
        if "replace" in operations.names[:-1]:  # the manifest was replaced
            raise Killed
        return call()

    with pytest.raises(Killed):
        operations.watch(replace_all, kill)
    report = b2array.verify(url, deep=True)
    assert report.ok, report
    assert report["x"].checked == 4
    assert b2array.open_group(url)["x"][...].tolist() == [*range(8)]
