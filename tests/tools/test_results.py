"""How results are shown, and as JSON."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from damage import flip, noise, place, write

import b2array
from b2array.tools.results import Results

pytestmark = pytest.mark.usefixtures("_no_cache")


def test_results_are_json(path):
    write(path, noise(), "sparse")
    place(path, 0)[0].unlink()
    for result in (b2array.verify(path), b2array.repair(path), b2array.vacuum(path), b2array.repack(path)):
        assert json.loads(json.dumps(result.to_dict()))["url"] == str(path)
        assert str(path) in str(result)


def test_results_are_tables(path):
    a = write(path, noise(32), "sparse")
    a[...] = 1
    report = b2array.verify(path)
    assert "\n  chunks     : 4\n" in str(report)
    assert "4 orphaned chunk files: " in str(report)
    for part in ("<table>", "<th", "in order", "<li>4 orphaned"):
        assert part in report._repr_html_()
    done = b2array.vacuum(path, grace=0)
    assert "files : 4: 0000" in str(done)
    assert "<td" in done._repr_html_()
    flip(*place(path, 2, 40))
    repaired = b2array.repair(path)
    assert "lost      : 2\n" in str(repaired)
    assert "<b>repaired</b>" in repaired._repr_html_()
    both = Results("here <b>", {"one <i>": report, "two": repaired})
    html = re.sub(' style="[^"]*"', "", both._repr_html_())
    assert "<tr><th>member</th><th>result</th><th>layout</th>" in html
    assert "<tr><th>one &lt;i&gt;</th><td>in order</td>" in html
    assert str(both).splitlines()[0] == "here <b>: 2 members"


def test_the_results_of_a_group_are_found_by_name(tmp_path):
    group = b2array.open_group(tmp_path / "a.b2d", "w")
    for name in ("x", "y"):
        group[name] = np.random.default_rng(0).normal(size=1000)
        group[name].append(np.ones(1000))
    results = b2array.repack(tmp_path / "a.b2d")
    assert [*results] == ["x", "y"]
    assert len(results) == 2
    assert results.nbytes == results["x"].nbytes + results["y"].nbytes > 0
    assert b2array.repack(tmp_path / "a.b2d").nbytes == 0
    with pytest.raises(KeyError):
        results["z"]
