"""The command line, as the documentation shows it and beyond."""

from __future__ import annotations

import doctest
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest

import b2array
from b2array import __main__, bloscpack
from b2array.catalog import owners
from b2array.grid.chunking import automatic
from b2array.store.local_store import LocalStore
from b2array.store.open import open_store
from b2array.tools import anatomy, bench, cli, demo, describing, options

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.rst"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def waves(tmp_path: Path) -> np.ndarray:
    """Make the array waves.b2nd."""
    x = np.arange(1200.0).reshape(30, 40)
    a = b2array.create(tmp_path / "waves.b2nd", x.shape, "f8", chunks=(10, 10), blocks=(5, 10), dims=("y", "x"))
    a[:20] = x[:20]
    a.attrs["unit"] = "m"
    return a[...]


def blocks() -> list[tuple[str, str]]:
    """Return the code blocks of the page: language and text."""
    found = re.findall(r"^\.\. code-block:: (\w+)\n\n((?:   .*\n|\n)+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [(language, re.sub(r"^   ", "", text, flags=re.MULTILINE)) for language, text in found]


def transcripts(text: str) -> list[tuple[str, str]]:
    """Cut a console session into commands and what they print."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], (part.rstrip("\n") + "\n" for part in parts[1::2]), strict=True))


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the demonstration take a small field."""
    monkeypatch.setattr(demo, "main", functools.partial(demo.main, 8, 16))


@pytest.fixture
def _measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `bench` call each function once."""
    monkeypatch.setattr(bench, "repeat", lambda calls: bench.measure(next(iter(calls))))


@pytest.mark.usefixtures("small_demo", "_measured_once")
def test_the_transcripts_of_the_documentation_are_what_happens(run: Run) -> None:
    names: dict[str, Any] = {}
    checker = doctest.OutputChecker()
    commands = set()
    for language, text in blocks():
        if language == "python":
            exec(text, names)
            continue
        for command, expected in transcripts(text):
            program, *arguments = shlex.split(command)
            assert program == "b2array"
            commands.add(arguments[0])
            code, out, err = run(*arguments)
            got = err + out + (f"[exit code {code}]\n" if code else "")
            assert checker.check_output(expected.lstrip("\n"), got, FLAGS), f"{command}\n{expected}\n---\n{got}"
    assert commands >= {command.name for command in cli.app.registered_commands}


def test_nothing_imports_the_command_line() -> None:
    script = "import sys, b2array; print('b2array.tools.cli' in sys.modules, 'typer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["False", "False"]


def without(hidden: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program as if packages were not installed."""
    script = (
        f"import sys; sys.modules |= dict.fromkeys({hidden!r})\n"
        f"from b2array.__main__ import main; sys.exit(main({list(arguments)!r}))"
    )
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)


def test_without_typer_the_rest_says_what_to_install() -> None:
    done = without(["typer"], "info", "x.b2nd")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "pip install rich tqdm typer" in done.stderr  # which works from a checkout, too


@pytest.mark.parametrize("hidden", [[], ["typer"]])
def test_the_version_is_that_of_the_distribution(hidden: list[str]) -> None:
    done = without(hidden, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{version('b2array')}\n", "")
    assert b2array.__version__ == version("b2array")
    assert "__version__" in dir(b2array)


@pytest.mark.usefixtures("small_demo")
def test_without_typer_the_demonstration_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__._without_typer(["demo"]) == 0
    assert "Every part is equal" in capsys.readouterr().out


def test_help_without_typer(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__._without_typer(["--help"]) == 0
    assert "usage: b2array demo" in capsys.readouterr().out
    assert __main__._without_typer(["demo", "-h"]) == 0
    assert "usage: b2array demo" in capsys.readouterr().out
    assert __main__._without_typer(["demo", "--what"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert __main__._without_typer([]) == 2
    assert "pip install" in capsys.readouterr().err


def test_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "b2array", "info", "nowhere.b2nd"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(r"b2array: .*nowhere\.b2nd.*\n", done.stderr)


@pytest.mark.slow
def test_whoever_stops_reading_is_not_told_of_errors(tmp_path: Path) -> None:
    b2array.asarray(np.arange(20_000), url=tmp_path / "x.b2nd")
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "b2array", "cat", str(tmp_path / "x.b2nd"), "--all"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.slow
def test_characters_that_the_output_cannot_have_are_escaped(tmp_path: Path) -> None:
    b2array.asarray(np.arange(20_000), url=tmp_path / "x.b2nd", attrs={"unit": "°C"})
    command = [sys.executable, "-m", "b2array", "info", str(tmp_path / "x.b2nd"), "--chunks"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert ": \\xb0C\n" in done.stdout


def test_help_and_completion(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for command in cli.app.registered_commands:
        assert f"  {command.name} " in out
        assert run(command.name, "--help")[0] == 0
        assert run(command.name, "-h") == run(command.name, "--help")
    assert run("-h") == (0, out, "")
    environment = os.environ | {"_B2ARRAY_COMPLETE": "complete_bash", "COMP_WORDS": "b2array co", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", "from b2array.__main__ import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.stdout.split() == ["convert", "copy"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.slow
def test_bash_completes_after_the_installation(tmp_path: Path) -> None:
    program = tmp_path / "b2array"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m b2array "$@"\n')
    program.chmod(0o755)
    paths = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    # The program installs what the shell that calls it needs.
    script = """
        b2array --install-completion > /dev/null || exit 1
        . ~/.bashrc
        function=$(complete -p b2array | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        for words in "b2array co" "b2array info --ra" "b2array zz"; do
            COMP_WORDS=($words) COMP_CWORD=$(wc -w <<< "${words#* }")
            $function b2array
            echo "$words: ${COMPREPLY[*]}"
        done
    """
    environment = paths | {"HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["b2array co: convert copy", "b2array info --ra: --raw", "b2array zz: "]


WRONG = [
    (["nonsense"], "'nonsense'"),
    (["inf"], "'info'"),
    (["--what"], "--what"),
    (["info"], "'URL'"),
    (["convert", "a"], "'DST'"),
    (["info", "a", "b"], "(b)"),
    (["info", "a", "--what"], "--what"),
    (["info", "a", "--jsn"], "--json"),
    (["info", "a", "--storage"], "--storage"),
    (["info", "waves.b2nd", "--storage", "oops"], "--storage"),
    (["cat", "waves.b2nd", "[a.b]"], "KEY"),
    (["cat", "waves.b2nd", "__import__('os')"], "KEY"),
    (["convert", "waves.b2nd", "x.npy", "--chunks", "a,b"], "--chunks"),
    (["convert", "waves.b2nd", "x.npy", "--dst-format", "csv"], "--dst-format"),
    (["convert", "waves.b2nd", "x.npy", "--codec", "rar"], "--codec"),
    (["convert", "waves.b2nd", "x.npy", "--clevel", "11"], "--clevel"),
    (["convert", "waves.b2nd", "x.npy", "--clevel", "high"], "--clevel"),
    (["convert", "waves.b2nd", "x.npy", "--filters", "coffee"], "--filters"),
    (["convert", "waves.b2nd", "x.npy", "--zarr-format", "7"], "--zarr-format"),
    (["copy", "waves.b2nd", "x.npy", "--layout", "round"], "--layout"),
    (["copy", "waves.b2nd", "x.b2nd", "--access", "rows"], "--access"),
    (["pack", "waves.b2nd", "x.npy", "--checksum", "crc64"], "--checksum"),
    (["pack", "waves.b2nd", "x.npy", "--chunk-size", "0"], "--chunk-size"),
    (["vacuum", "waves.b2nd", "--grace", "soon"], "--grace"),
]


@pytest.mark.parametrize(("arguments", "named"), WRONG)
@pytest.mark.usefixtures("waves")
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], named: str, run: Run) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"b2array[a-z ]*: .+ \(see b2array[a-z ]* --help\)\n", err)
    assert named in err
    assert not Path("x.npy").exists()


def test_no_arguments_at_all_get_the_help_and_exit_code_2(run: Run) -> None:
    code, out, err = run()
    assert (code, out) == (2, "")
    assert "Usage: b2array" in err
    assert "convert" in err


@pytest.mark.parametrize(
    ("hidden", "arguments"),
    [
        pytest.param([], ["info", "x", "--what"], marks=pytest.mark.slow),
        pytest.param(["rich"], ["nonsense"], marks=pytest.mark.slow),
        (["rich"], ["copy", "a", "b", "--layout", "c"]),
    ],
)
def test_a_program_that_is_misunderstood_says_one_line_with_and_without_rich(
    arguments: list[str], hidden: list[str]
) -> None:
    done = without(hidden, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"b2array[a-z ]*: .+ --help\)\n", done.stderr)


def test_messages_about_formats_show_no_password(tmp_path: Path, waves: np.ndarray, run: Run) -> None:
    url = f"memory://user:word@{tmp_path.name}/x"
    b2array.convert("waves.b2nd", f"{url}.zarr")
    for command in (
        ["copy", f"{url}.zarr", "y.b2nd"],
        ["copy", "waves.b2nd", f"{url}.npy"],
        ["cat", "waves.b2nd", "-o", f"{url}.txt"],
    ):
        code, out, err = run(*command)
        assert (code, out) == (1, "")
        assert f"memory://{tmp_path.name}/x" in err
        assert "word" not in err


@pytest.mark.parametrize("command", ["info", "cat", "verify", "bench"])
@pytest.mark.parametrize("status", [403, 500])
def test_what_a_server_refuses_is_one_line(command: str, status: int, http: Any, run: Run) -> None:
    http.statuses |= dict.fromkeys(("a.b2nd", "a.b2nd/chunks.b2frame"), status)
    code, out, err = run(command, http.url_of("a.b2nd?signature=secret-signature"))
    assert (code, out) == (1, "")
    assert "secret-signature" not in err
    assert re.fullmatch(rf"b2array: .*{status}.*\n", err)


def test_a_server_that_is_not_there_is_one_line(run: Run) -> None:
    pytest.importorskip("aiohttp")
    code, out, err = run("info", "http://127.0.0.1:1/a.b2nd")
    assert (code, out) == (1, "")
    assert re.fullmatch(r"b2array: .+\n", err)


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "missing.b2nd"],
        ["cat", "missing.b2nd"],
        ["cat", "waves.b2nd", "[99]"],
        ["cat", "waves.b2nd", "['f']"],
        ["convert", "missing.npy", "x.npy"],
        ["convert", "waves.b2nd", "x.unknown"],
        ["copy", "missing.b2nd", "x.b2nd"],
        ["copy", "waves.b2nd", "waves.b2nd"],
        ["unpack", "missing.blp", "x.npy"],
        ["ls", "missing"],
        ["tree", "missing"],
        ["bench", "missing.b2nd"],
        ["info", "nosuch://a.b2nd"],
        ["cat", "waves.b2nd", "-o", "waves.b2nd"],
        ["pack", "missing.bin", "x.blp"],
    ],
)
@pytest.mark.usefixtures("waves")
def test_errors_are_one_line_and_exit_code_1(arguments: list[str], run: Run) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (1, "")
    assert re.fullmatch(r"b2array: .+\n", err)


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "bad.b2nd"],
        ["cat", "bad.b2nd"],
        ["copy", "bad.b2nd", "x.b2nd"],
        ["info", "bad.blp"],
        ["unpack", "bad.blp", "x.npy"],
        ["info", "bad.b2nd", "--chunks"],
        ["info", "bad.b2nd", "--raw"],
        ["convert", "bad.npy", "x.b2nd"],
        ["bench", "bad.b2nd"],
    ],
)
@pytest.mark.usefixtures("waves")
def test_damage_is_exit_code_3(arguments: list[str], run: Run) -> None:
    whole = Path("waves.b2nd").read_bytes()
    Path("bad.b2nd").write_bytes(whole[: len(whole) // 2])
    Path("bad.blp").write_bytes(bloscpack.pack(np.arange(100))[:40])
    Path("bad.npy").write_bytes(b"\x93NUMPY nothing")
    code, out, err = run(*arguments)
    assert (code, out) == (3, "")
    assert re.fullmatch(r"b2array: .+\n", err)


def test_json_is_what_the_text_says(run: Run, waves: np.ndarray) -> None:
    found = json.loads(run("info", "waves.b2nd", "--json")[1])
    assert found["shape"] == [30, 40]
    assert found["attrs"] == {"unit": "m"}
    assert found["nbytes"] == waves.nbytes
    sizes = json.loads(run("info", "waves.b2nd", "--json", "--chunks")[1])["sizes"]
    assert len(sizes["chunks"]) == 12
    assert sizes["chunks"][5]["coords"] == [1, 1]
    assert sizes["chunks"][11]["special"] == "zeros"
    assert sizes["total"] == Path("waves.b2nd").stat().st_size
    assert sizes["total"] == sizes["frame"] + sizes["live"] + sizes["dead"]
    raw = json.loads(run("info", "waves.b2nd", "--json", "--raw")[1])
    whole = Path("waves.b2nd").read_bytes()
    for each in raw:
        value = bytes.fromhex(each["raw"])
        if not (each["part"] == "index" and each["name"].startswith("chunk ")):
            assert whole[each["offset"] : each["offset"] + len(value)] == value, each


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_every_byte_is_accounted_for(layout: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a = b2array.zeros((40, 40), url=tmp_path / "x", chunks=(10, 10), blocks=(5, 5), layout=layout)
    a[...] = rng.random((40, 40))
    held = owners.load(open_store(tmp_path / "x"))
    before = anatomy.survey(held)
    a[:10] = rng.random((10, 40))
    after = anatomy.survey(owners.load(open_store(tmp_path / "x")))
    if layout == "sparse":
        assert before.dead == 0
    assert after.dead >= before.dead + sum(each.cbytes for each in before.chunks[:4])
    assert after.total == after.frame + after.live + after.dead


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_chunks_of_one_repeated_value_take_no_more_than_they_take(layout: str, tmp_path: Path) -> None:
    data = np.full((40, 40), 2.5)
    b2array.asarray(data, url=tmp_path / "x", chunks=(10, 10), blocks=(5, 5), layout=layout).close()
    sizes = anatomy.survey(owners.load(open_store(tmp_path / "x")))
    assert {each.special for each in sizes.chunks} == {"value"}
    assert (sizes.dead, sizes.total) == (0, sizes.frame + sizes.live)


@pytest.mark.parametrize("name", ["array", "bytes", "unfinished", "version 1"])
def test_every_byte_in_front_of_the_chunks_of_a_bloscpack_file_is_named(name: str, run: Run) -> None:
    if name == "version 1":
        packed = (
            b"blpk"
            + bytes([1, 0, 0, 0])
            + (1).to_bytes(8, "little")
            + bloscpack.open(bloscpack.pack(b"a")).get_chunk(0)
        )
    elif name == "unfinished":
        writer = bloscpack.create("x.blp", chunk_size=100, checksum="md5")
        writer.write(bytes(1000))
        writer._file.flush()
        packed = writer._place.path.read_bytes()
        writer.abort()
    else:
        packed = bloscpack.pack(np.arange(1000) if name == "array" else b"a" * 1000, chunk_size=400)
    Path("x.blp").write_bytes(packed)
    code, out, _ = run("info", "x.blp", "--raw", "--json")
    assert code == 0
    at = 0
    for each in json.loads(out):
        assert each["offset"] == at
        assert each["name"]
        at += len(bytes.fromhex(each["raw"]))
        assert packed[each["offset"] : at] == bytes.fromhex(each["raw"])
    assert at == bloscpack.open(packed).first_chunk


def test_the_fields_of_an_array_of_an_unknown_type_are_named(run: Run) -> None:
    blosc2.asarray(np.arange(100.0), urlpath="x.b2nd")
    Path("x.b2nd").write_bytes(Path("x.b2nd").read_bytes().replace(b"<f8", b"<z8"))
    assert run("cat", "x.b2nd")[0] != 0
    code, out, err = run("info", "x.b2nd", "--raw", "--json")
    assert (code, err) == (0, "")
    assert {"b2nd", "trailer_size"} <= {each["name"] for each in json.loads(out)}


def test_chunks_of_a_directory_that_cannot_be_listed_are_described(http: Any, run: Run, tmp_path: Path) -> None:
    b2array.asarray(np.arange(100), url=tmp_path / "s.b2nd", layout="sparse", chunks=(20,)).close()
    http.objects |= {f"s.b2nd/{file.name}": file.read_bytes() for file in (tmp_path / "s.b2nd").iterdir()}
    code, out, err = run("info", http.url_of("s.b2nd"), "--chunks")
    assert (code, err) == (0, "")
    assert "5, 5 of them stored" in out
    assert "not known: the files cannot be listed" in out
    sizes = json.loads(run("info", http.url_of("s.b2nd"), "--chunks", "--json")[1])["sizes"]
    assert (sizes["total"], sizes["dead"], len(sizes["chunks"])) == (None, None, 5)


def test_a_member_of_an_archive_has_no_dead_space_behind_it(run: Run) -> None:
    group = b2array.open_group("g.b2d", "w")
    for name in "ab":
        group[name] = np.random.default_rng(0).random((30, 30))
    b2array.convert("g.b2d", "g.b2z")
    for name in "ab":
        sizes = json.loads(run("info", f"g.b2z/{name}", "--chunks", "--json")[1])["sizes"]
        assert sizes["dead"] == 0
        assert sizes["total"] == Path(f"g.b2d/{name}.b2nd").stat().st_size


def test_missing_chunks_are_damage_and_lost_ones_are_counted(run: Run) -> None:
    b2array.asarray(np.arange(100), url="s.b2nd", layout="sparse", chunks=(20,)).close()
    Path("s.b2nd/00000000.chunk").unlink()
    code, out, err = run("info", "s.b2nd", "--chunks")
    assert (code, out) == (3, "")
    assert re.search(r"chunk \d of .*s\.b2nd: expected its file 00000000\.chunk, found none", err)
    assert run("repair", "s.b2nd")[0] == 0
    code, out, err = run("info", "s.b2nd", "--chunks")
    assert (code, err) == (0, "")
    assert "5, 4 of them stored, 1 lost" in out


def test_the_map_of_chunks_has_a_line_a_row_and_says_what_it_leaves_out() -> None:
    sizes = [anatomy.ChunkSizes(n, n, "", 100, cbytes, 1, "") for n, cbytes in enumerate([10, 30, 60, 90, 110, 0])]
    assert list(anatomy.chunk_map(sizes, (2, 3))) == ["░▒▓", "██·"]
    assert list(anatomy.chunk_map(sizes[:4] * 2, (2, 2, 2))) == ["░▒", "▓█", "", "░▒", "▓█"]
    # Dimensions with one chunk need no lines, and a row that is too long goes on in the next line.
    assert list(anatomy.chunk_map(sizes, (2, 1, 3))) == ["░▒▓", "██·"]
    for grid in ((6,), (6, 1, 1), (1, 6, 1), (1, 1, 6)):
        assert list(anatomy.chunk_map(sizes, grid)) == ["░▒▓██·"]
    assert list(anatomy.chunk_map(sizes[:1] * 100, (100, 1))) == ["░" * 64, "░" * 36]
    assert list(anatomy.chunk_map(sizes[:1] * 3000, (3000, 1)))[-1] == "and 440 more"
    assert list(anatomy.chunk_map(sizes[:1], ())) == ["░"]
    many = sizes[:1] * 10000
    lines = list(anatomy.chunk_map(many, (100, 100)))
    assert lines[0] == "░" * 64 + " and 36 more"
    assert lines[-1] == "and 60 more rows"


def test_parts_are_printed_and_written(run: Run, waves: np.ndarray, tmp_path: Path) -> None:
    assert run("cat", "waves.b2nd", "[3, 4]") == (0, "124.\n", "")
    assert run("cat", "waves.b2nd", "1, :3")[1] == "[40. 41. 42.]\n"
    assert run("cat", "waves.b2nd", "[[2, 0], 0]")[1] == "[80.  0.]\n"
    assert "..." in run("cat", "waves.b2nd")[1]
    assert "..." not in run("cat", "waves.b2nd", "--all")[1]
    assert run("cat", "waves.b2nd", "[:, ::-2]", "-o", "part.npy") == (0, "", "")
    np.testing.assert_array_equal(np.load("part.npy"), waves[:, ::-2])
    assert run("cat", "waves.b2nd", "-o", "part.npy")[2].endswith("part.npy exists; --overwrite replaces it\n")
    assert run("cat", "waves.b2nd", "-o", f"memory://{tmp_path.name}/part.npy") == (0, "", "")
    assert run("cat", f"memory://{tmp_path.name}/part.npy", "[3, 4]")[1] == "124.\n"
    assert run("cat", "waves.b2nd", "-o", "part.npy", "--overwrite")[0] == 0
    np.testing.assert_array_equal(np.load("part.npy"), waves)


@pytest.mark.parametrize("shape", [(1001,), (7, 150), (6, 400), (8, 9, 20), (2, 3, 4, 50), (1500, 1)])
@pytest.mark.parametrize("dtype", ["f8", "i2", "S3", "M8[s]"])
def test_a_large_array_is_printed_as_numpy_does(
    shape: tuple[int, ...], dtype: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_MOST_NBYTES", 0)
    data = np.random.default_rng(0).integers(-999, 9999, shape).astype(dtype)
    b2array.asarray(data, url="x.b2nd").close()
    assert run("cat", "x.b2nd") == (0, f"{np.array2string(data)}\n", "")
    assert run("cat", "x.b2nd", "--all")[1] == f"{np.array2string(data, threshold=sys.maxsize)}\n"


def test_of_an_array_that_no_memory_holds_the_corners_are_printed(run: Run) -> None:
    b2array.zeros((10**7, 10**7), url="x.b2nd", chunks=(10**4, 10**4)).close()
    code, out, err = run("cat", "x.b2nd")
    assert (code, err) == (0, "")
    assert out.splitlines()[3] == " ..."
    assert "[0. 0. 0. ... 0. 0. 0.]" in out


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[0:3, ::-1]", (slice(0, 3), slice(None, None, -1))),
        ("0", 0),
        ("[-1]", -1),
        ("", ()),
        ("[]", ()),
        ("...", ...),
        ("[None, 1]", (None, 1)),
        ("[True]", True),
        ("[[1, -2], 3]", ([1, -2], 3)),
        ("[1, 2], 3", ([1, 2], 3)),
        ("['a']", "a"),
        ("[['a', 'b']]", ["a", "b"]),
    ],
)
def test_keys_are_parsed(text: str, key: Any) -> None:
    if text in ("", "[]"):
        with pytest.raises(ValueError, match="expected integers"):
            options.key_of(text)
        return
    assert options.key_of(text) == key


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "[a]",
        "f()",
        "[__import__('os').system('true')]",
        "[1.5]",
        "[1:'a']",
        "[(lambda: 0)()]",
        "][",
        "[1",
        "[0][1]x",
        "[" * 500,
        "1" * 2000,
        "[{}]",
        "[x for x in y]",
        "[b'a']",
        "[-'a']",
    ],
)
def test_keys_that_are_something_else_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected integers"):
        options.key_of(text)


def test_bytes_of_any_file_are_packed_and_unpacked(run: Run, tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    Path("some.bin").write_bytes(data)
    arguments = ("--verify", "--codec", "lz4", "--filters", "none", "--chunk-size", "100000")
    assert run("pack", "some.bin", "some.blp", *arguments) == (0, "", "")
    assert bloscpack.unpack("some.blp") == data
    assert run("unpack", "some.blp", "back.bin", "--verify") == (0, "", "")
    assert Path("back.bin").read_bytes() == data
    code, _, err = run("unpack", "some.blp", "back.bin")
    assert code == 1
    assert err.endswith("back.bin exists; --overwrite replaces it\n")
    assert run("unpack", "some.blp", "back.bin", "--overwrite")[0] == 0
    Path("cut.blp").write_bytes(Path("some.blp").read_bytes()[:-10])
    code, _, err = run("unpack", "cut.blp", "saved.bin", "--partial")
    assert code == 3
    assert "chunk 12 of" in err
    assert Path("saved.bin").read_bytes() == data[:1_200_000]


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 3000])
def test_bytes_in_other_stores_are_packed_and_unpacked(data: bytes, run: Run, tmp_path: Path) -> None:
    place = f"memory://{tmp_path.name}-{len(data)}"
    Path("some.bin").write_bytes(data)
    for command, source, made in (
        ("pack", "some.bin", f"{place}/some.blp"),
        ("unpack", f"{place}/some.blp", f"{place}/back.bin"),
        ("pack", f"{place}/back.bin", "again.blp"),
        ("unpack", "again.blp", "again.bin"),
    ):
        assert run(command, source, made, "--verify") == (0, "", "")
    assert Path("again.bin").read_bytes() == data
    assert not bloscpack.open("again.blp").is_array


@pytest.mark.parametrize("harm", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"x" + data[1:]])
def test_bytes_that_differ_afterwards_are_an_error(
    harm: Callable[[bytes], bytes], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    bloscpack.pack(bytes(1000), "some.blp", chunk_size=300)
    original = LocalStore.create

    def create(store: LocalStore, name: str, data: Any) -> Any:
        return original(store, name, harm(b"".join(data)))

    monkeypatch.setattr(LocalStore, "create", create)
    code, _, err = run("unpack", "some.blp", "back.bin", "--verify")
    assert code == 1
    assert re.fullmatch(r"b2array: .*back\.bin differs from its source.*\n", err)


@pytest.mark.usefixtures("waves")
def test_what_is_before_the_damage_of_an_array_is_saved(run: Run, waves: np.ndarray) -> None:
    assert run("pack", "waves.b2nd", "waves.blp", "--chunk-size", "960")[0] == 0
    Path("waves.blp").write_bytes(Path("waves.blp").read_bytes()[:-10])
    assert run("unpack", "waves.blp", "saved.npy")[0] == 3
    assert run("unpack", "waves.blp", "saved.npy", "--partial")[0] == 3
    np.testing.assert_array_equal(np.load("saved.npy"), waves[:27])


def test_copies_keep_chunks_or_make_others(run: Run, waves: np.ndarray) -> None:
    code, out, err = run("copy", "waves.b2nd", "sparse.b2nd", "--layout", "sparse")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"sparse\.b2nd: 1 array of 9\.4 KiB in .*, ratio .*, .* s\n", out)
    assert Path("sparse.b2nd/chunks.b2frame").exists()
    assert run("copy", "sparse.b2nd", "big.b2nd", "--chunks", "30,40", "--codec", "zlib", "--progress")[0] == 0
    a = b2array.open("big.b2nd")
    assert (a.chunks, a.cparams.codec, dict(a.attrs)) == ((30, 40), "zlib", {"unit": "m"})
    np.testing.assert_array_equal(a, waves)
    chunks = b2array.create_schunk("log.b2frame", chunksize=80, typesize=8)
    chunks.append_data(np.arange(10))
    assert run("copy", "log.b2frame", "log2.b2frame")[1].startswith("log2.b2frame: 1 chunk in ")
    assert b2array.open_schunk("log2.b2frame").decompress_chunk(0) == np.arange(10).tobytes()
    assert json.loads(run("info", "log2.b2frame", "--json")[1])["format"] == "super-chunk"
    for option in ("--chunks=2", "--blocks=2", "--codec=lz4", "--clevel=1", "--filters=none"):
        code, _, err = run("copy", "log.b2frame", "log3.b2frame", option)
        assert (code, Path("log3.b2frame").exists()) == (1, False)
        assert "log.b2frame is no array: its chunks can only be copied as they are" in err


def test_frames_are_verified_and_repaired(run: Run, waves: np.ndarray) -> None:
    found = json.loads(run("verify", "waves.b2nd", "--deep", "--json")[1])
    assert (found["ok"], found["checked"], found["problems"]) == (True, 8, [])
    raw = bytearray(Path("waves.b2nd").read_bytes())
    chunk = json.loads(run("info", "waves.b2nd", "--json", "--chunks")[1])["sizes"]["chunks"][5]
    raw[chunk["offset"] + chunk["cbytes"] - 3] ^= 255
    Path("bad.b2nd").write_bytes(raw)
    assert run("verify", "bad.b2nd")[0] == 0
    code, out, err = run("verify", "bad.b2nd", "--deep", "--json")
    assert (code, err) == (3, "")
    assert [problem["chunk"] for problem in json.loads(out)["problems"]] == [5]
    assert run("cat", "bad.b2nd")[0] == 3
    assert json.loads(run("repair", "bad.b2nd", "--dry-run", "--json")[1])["lost"] == [5]
    assert run("verify", "bad.b2nd", "--deep")[0] == 3
    assert run("repair", "bad.b2nd", "--no-backup")[0] == 0
    assert not Path("bad.b2nd.b2bak").exists()
    np.testing.assert_array_equal(b2array.open("bad.b2nd")[:10], waves[:10])
    assert run("cat", "bad.b2nd", "[10:20, 10:20]")[0] == 3
    assert run("repair", "missing.b2nd")[0] == 1


def test_leftovers_of_a_frame_that_was_never_finished_are_removed(run: Run) -> None:
    left = Path("a.b2nd.0123456789abcdef.b2tmp")
    left.write_bytes(b"x")
    assert json.loads(run("vacuum", "a.b2nd", "--grace", "0", "--json")[1])["removed"] == [left.name]
    assert not left.exists()
    assert run("vacuum", "a.b2nd", "--grace", "0")[::2] == (1, f"b2array: {Path('a.b2nd').absolute()} does not exist\n")


def test_dead_space_is_reclaimed(run: Run, waves: np.ndarray) -> None:
    assert run("copy", "waves.b2nd", "sparse.b2nd", "--layout", "sparse")[0] == 0
    for name in ("waves.b2nd", "sparse.b2nd"):
        b2array.open(name, "r+")[:10] = 3.5
    before = json.loads(run("info", "waves.b2nd", "--json", "--chunks")[1])["sizes"]
    assert before["dead"] > 0
    would = json.loads(run("repack", "waves.b2nd", "--dry-run", "--json")[1])
    assert Path("waves.b2nd").stat().st_size == before["total"]
    done = json.loads(run("repack", "waves.b2nd", "--json")[1])
    assert would["nbytes"] > 0
    assert done["nbytes"] == before["total"] - Path("waves.b2nd").stat().st_size
    assert json.loads(run("vacuum", "sparse.b2nd", "--json")[1])["removed"] == []
    assert len(json.loads(run("vacuum", "sparse.b2nd", "--grace", "0", "--dry-run", "--json")[1])["removed"]) == 4
    assert len(json.loads(run("vacuum", "sparse.b2nd", "--grace", "0", "--json")[1])["removed"]) == 4
    for name in ("waves.b2nd", "sparse.b2nd"):
        np.testing.assert_array_equal(b2array.open(name)[10:], waves[10:])


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("convert waves.b2nd y.h5 --verify", ["converting: 100%", "verifying: 100%", "9.60k/9.60k"]),
        ("copy waves.b2nd y.b2nd", ["chunks copied: 100%", "12/12"]),
        ("copy waves.b2nd y.b2nd --layout sparse --codec lz4", ["chunks copied: 100%", "12/12"]),
        ("copy chunks.b2frame y.b2frame", ["chunks copied: 100%", "3/3"]),
        ("pack waves.b2nd y.blp", ["converting: 100%", "9.60k/9.60k"]),
        ("pack some.bin y.blp", ["packing: 100%"]),
        ("unpack some.blp y.bin", ["unpacking: 100%"]),
        ("verify waves.b2nd --deep", ["verifying: 100%", "8/8"]),
        ("repack waves.b2nd", ["chunks copied: 100%", "12/12"]),
        ("bench waves.b2nd --no-alternatives", ["measuring: 5 items"]),
    ],
)
@pytest.mark.usefixtures("waves", "_measured_once")
def test_progress_is_shown_on_request(command: str, shown: list[str], run: Run) -> None:
    Path("some.bin").write_bytes(bytes(3000))
    bloscpack.pack(bytes(3000), "some.blp")
    with b2array.create_schunk("chunks.b2frame", chunksize=100) as chunks:
        for _ in range(3):
            chunks.append_data(bytes(100))
    b2array.open("waves.b2nd", "r+")[:10] = 3.5
    code, _, err = run(*command.split(), "--progress")
    assert code == 0
    assert all(text in err for text in shown)
    for made in Path().glob("y.*"):
        made.unlink() if made.is_file() else shutil.rmtree(made)
    assert run(*command.split())[::2] == (0, "")


def test_urls_are_as_good_as_paths(run: Run, waves: np.ndarray) -> None:
    assert run("copy", "waves.b2nd", "memory://cli-test/waves.b2nd")[0] == 0
    assert run("cat", "memory://cli-test/waves.b2nd", "[3, 4]") == (0, "124.\n", "")
    assert "float64" in run("info", "memory://cli-test/waves.b2nd", "--chunks")[1]
    assert run("convert", "memory://cli-test/waves.b2nd", "memory://cli-test/waves.blp", "--verify")[0] == 0
    assert "bloscpack" in run("info", "memory://cli-test/waves.blp")[1]
    b2array.open_group("memory://cli-test/group", "w").create("a", data=[1, 2])
    assert run("ls", "memory://cli-test/group")[1].split()[0] == "a"
    assert json.loads(run("ls", "memory://cli-test/group", "--json")[1])["a"]["shape"] == [2]
    assert "a" in run("tree", "memory://cli-test/group")[1]


def test_storage_options_are_passed_on(run: Run, s3_options: dict[str, Any], bucket: str, waves: np.ndarray) -> None:
    given = [part for name, value in s3_options.items() for part in ("--storage", f"{name}={json.dumps(value)}")]
    assert run("copy", "waves.b2nd", f"s3://{bucket}/waves.b2nd", *given)[0] == 0
    assert run("cat", f"s3://{bucket}/waves.b2nd", "[3, 4]", *given) == (0, "124.\n", "")


@pytest.mark.usefixtures("_measured_once")
def test_bench_measures_every_pattern_and_other_shapes(run: Run, waves: np.ndarray) -> None:
    found = json.loads(run("bench", "waves.b2nd", "--json")[1])
    assert [each["pattern"] for each in found["file"]] == ["one item", "one chunk", "[i, :]", "[:, i]", "everything"]
    assert [each["nbytes"] for each in found["file"]] == [8, 800, 320, 240, 9600]
    assert len({(tuple(each["chunks"]), tuple(each["blocks"])) for each in found["sample"]}) >= 3
    assert run("bench", "waves.b2nd", "--no-alternatives")[1].count("\n") == 6


def test_a_super_chunk_that_bench_cannot_measure_is_not_damaged(run: Run) -> None:
    b2array.create_schunk("log.b2frame", chunksize=80).close()
    code, out, err = run("bench", "log.b2frame")
    assert (code, out) == (1, "")
    assert err.endswith("log.b2frame is a super-chunk: bench measures arrays\n")


@pytest.mark.usefixtures("_measured_once")
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (3, 4, 5)])
def test_arrays_of_any_shape_are_described_and_measured(shape: tuple[int, ...], run: Run) -> None:
    b2array.asarray(np.ones(shape), url="x.b2nd")
    for command in (["info", "--chunks"], ["info", "--raw"], ["info", "--json", "--chunks"], ["bench"], ["cat"]):
        code, _, err = run(command[0], "x.b2nd", *command[1:])
        assert (code, err) == (0, "")


def test_what_json_lacks_is_text() -> None:
    found = describing.plain({"a": np.datetime64("2020-01-01"), "b": (np.int8(1), b"\xff"), "c": {1: np.arange(2)}})
    assert found == {"a": "2020-01-01", "b": [1, "ff"], "c": {"1": [0, 1]}}


def test_json_has_no_words_that_json_lacks(run: Run) -> None:
    b2array.full((3,), np.nan, url="x.b2nd", attrs={"limits": [-np.inf, 1.5, np.float64("nan")], "z": 1 + 2j}).close()

    def refuse(word: str) -> None:
        raise AssertionError(word)

    code, out, err = run("info", "x.b2nd", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out, parse_constant=refuse)
    assert found["fill_value"] == "nan"
    assert found["attrs"]["limits"] == ["-inf", 1.5, "nan"]


def test_no_line_of_the_help_is_cut_off_at_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    texts = [run("--help")[1], *(run(str(command.name), "--help")[1] for command in cli.app.registered_commands)]
    for line in "".join(texts).splitlines():
        assert len(line) <= 80
        assert not line.endswith("...") or line.startswith("Usage:")


@pytest.mark.usefixtures("waves")
def test_cat_writes_no_other_format(run: Run) -> None:
    for name in ("x.txt", "x.h5", "x"):
        code, out, err = run("cat", "waves.b2nd", "-o", name)
        assert (code, out) == (1, "")
        assert ".npy" in err
        assert not Path(name).exists()


@pytest.mark.usefixtures("waves")
def test_copy_writes_blosc2_frames_only(run: Run) -> None:
    for name in ("x.h5", "x.zarr", "x.npy", "x.blp"):
        code, out, err = run("copy", "waves.b2nd", name)
        assert (code, out) == (1, "")
        assert "b2array convert" in err
        assert not Path(name).exists()


def test_the_bytes_of_a_super_chunk_in_a_group_are_printed(run: Run) -> None:
    b2array.open_group("g.b2d", "w")
    chunks = b2array.create_schunk("g.b2d/s.b2f", chunksize=4)
    chunks.append_data(b"abcd")
    chunks.append_data(b"ef")
    for key in ("...", "0", "-1", "1:5", "::-2", "5:2", "[0, 5]", "2:,", "()", "None"):
        assert run("cat", "g.b2d/s", f"[{key}]", "-o", "part.npy", "--overwrite") == (0, "", "")
        expected = eval(f"items[{key}]", {"items": np.frombuffer(b"abcdef", np.uint8)})
        np.testing.assert_array_equal(np.load("part.npy"), expected)
    assert run("cat", "g.b2d/s", "[1:3]") == (0, "[98 99]\n", "")
    code, _, err = run("cat", "g.b2d/s", "[6]")
    assert (code, "out of bounds" in err) == (1, True)


def test_an_array_is_listed_in_a_line_wherever_it_is(run: Run) -> None:
    group = b2array.open_group("g.b2d", "w")
    group["air/t"] = np.zeros((2, 3))
    b2array.convert("g.b2d", "g.h5", overwrite=True)
    b2array.convert("g.b2d", "g.b2z")
    b2array.convert("g.b2d", "g.zarr", dst_format="zarr")
    b2array.convert("g.b2d/air/t", "t.b2nd")
    b2array.convert("g.b2d/air/t", "#t.npy")
    for url, name in {
        "g.b2d/air/t": "t",
        "g.b2d#air/t": "t",
        "g.b2d/air/t.b2nd": "t.b2nd",
        "g.b2z/air/t": "t",
        "g.h5/air/t": "t",
        "g.zarr/air/t": "t",
        "t.b2nd": "t.b2nd",
        "./#t.npy": "#t.npy",
    }.items():
        code, out, err = run("ls", url)
        assert (code, err) == (0, "")
        assert out.split()[:4] == [name, "float64", "(2,", "3)"]
        assert json.loads(run("ls", url, "--json")[1])[name]["shape"] == [2, 3]
        assert run("tree", url)[1].split()[:4] == ["/", "└──", name, "float64"]
    Path("g.b2d/air/t.b2nd").write_bytes(b"nothing")
    assert run("ls", "g.b2d/air/t")[::2] == (3, run("info", "g.b2d/air/t")[2])


def test_an_error_of_no_member_has_no_empty_name(run: Run) -> None:
    b2array.open_group("g.b2d", "w")["x"] = [1, 2]
    Path("g.b2d/.b2group").write_bytes(b"nothing at all")
    code, _, err = run("convert", "g.b2d", "g.h5")
    assert code == 3
    assert re.match(r"b2array: [^:]*\.b2group: expected", err)


@pytest.mark.usefixtures("waves", "_measured_once")
def test_members_are_described_measured_and_copied_by_their_path(run: Run) -> None:
    assert run("copy", "waves.b2nd", "g.b2d/a/waves")[1].startswith("g.b2d/a/waves: 1 array of 9.4 KiB in ")
    assert run("copy", "g.b2d", "g.b2z")[1].startswith("g.b2z: 1 array of 9.4 KiB ")
    for url in ("g.b2d/a/waves", "g.b2d/a/waves.b2nd", "g.b2d#a/waves", "g.b2z/a/waves", "g.b2z#a/waves"):
        assert json.loads(run("info", url, "--json", "--chunks")[1])["sizes"]["grid"] == [3, 4]
        assert run("info", url, "--raw")[0] == 0
        assert run("cat", url, "[3, 4]") == (0, "124.\n", "")
        assert run("bench", url, "--no-alternatives")[0] == 0
        assert run("verify", url, "--deep")[0] == 0
    assert run("copy", "g.b2z/a", "flat.b2d")[::2] == (0, "")
    assert run("ls", "flat.b2d")[1].startswith("waves  float64  (30, 40)")
    assert run("convert", "g.b2z/a/waves", "w.h5")[0] == 0
    assert run("info", "w.h5", "--chunks")[0] == 1


@pytest.mark.usefixtures("waves")
@pytest.mark.parametrize("command", ["copy", "convert"])
def test_shapes_are_chosen_anew_for_an_access(command: str, run: Run, tmp_path: Path) -> None:
    x = np.ones((200, 90, 80), "f4")
    b2array.asarray(x, url=tmp_path / "steps.b2nd", chunks=(1, 90, 80)).close()
    assert run(command, "steps.b2nd", "series.b2nd", "--access", "series")[0] == 0
    a = b2array.open(tmp_path / "series.b2nd")
    assert (a.chunks, a.blocks) == automatic(x.shape, 4, access="series")
    assert np.array_equal(a[...], x)


@pytest.mark.skipif(find_spec("zfpy") is None, reason="needs zfpy")
@pytest.mark.parametrize("command", ["copy", "convert"])
@pytest.mark.parametrize("options", [("--tolerance", "0.01"), ("--tolerance", "0.01", "--codec", "zfp")])
def test_a_tolerance_chooses_zfp(command: str, options: tuple[str, ...], tmp_path: Path, run: Run) -> None:
    values = np.sin(np.arange(10000.0) / 100).reshape(100, 100)
    b2array.asarray(values, url=tmp_path / "a.b2nd").close()
    assert run(command, str(tmp_path / "a.b2nd"), str(tmp_path / "b.b2nd"), *options)[0] == 0
    with b2array.open(tmp_path / "b.b2nd") as a:
        assert (a.cparams.codec, a.cparams.tolerance) == ("zfp_acc", 0.01)
        assert 0 < np.abs(a[...] - values).max() <= 0.01
    code, _, complaint = run(
        command, str(tmp_path / "a.b2nd"), str(tmp_path / "c.b2nd"), "--tolerance", "0.01", "--codec", "lz4"
    )
    assert (code, "a tolerance is for the codec 'zfp', not for 'lz4'" in complaint) == (2, True)


def test_copy_and_convert_take_the_same_options_of_compression(run: Run) -> None:
    helps = [run(command, "--help")[1] for command in ("copy", "convert")]
    for option in ("codec", "clevel", "filters", "absolute-error", "relative-error", "keepbits", "tolerance"):
        assert all(f"--{option} " in text for text in helps), option
    assert not any("cparams" in text for text in helps)


@pytest.mark.usefixtures("_measured_once")
def test_tables_fit_a_screen_of_eighty_columns(run: Run) -> None:
    rng = np.random.default_rng(0)
    b2array.asarray(rng.normal(size=(200, 300, 40)), url="waves.b2nd").close()
    group = b2array.open_group("station.b2d", "w")
    group["air/temperature_2m"] = rng.normal(size=(200, 300))
    group.snapshot("v1")
    for command in (
        ("verify", "station.b2d"),
        ("info", "--chunks", "waves.b2nd"),
        ("convert", "station.b2d", "station_of_the_roof.zarr"),
        ("bench", "waves.b2nd"),
    ):
        code, out, _ = run(*command)
        assert code == 0
        shown = out.replace(str(Path.cwd()), "")
        assert max(map(len, shown.splitlines())) <= 80, shown
