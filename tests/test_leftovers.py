"""A run of the tests fails if one of them leaves a file in the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.costly
@pytest.mark.parametrize("left", ["", "inner/there/left.npy"])
def test_a_run_whose_tests_leave_files_fails_and_names_them(tmp_path: Path, left: str) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "inner" / "there").mkdir(parents=True)
    test = f"def test_it():\n    for name in {[left] if left else []}:\n        open(name, 'w').close()\n"
    (tmp_path / "inner" / "there" / "test_it.py").write_text(test)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        # What other packages add to pytest takes seconds to import.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == bool(left), done.stdout
    if left:
        assert "have left files in the checkout: [" in done.stdout
        assert f"'{tmp_path / left}'" in done.stdout
