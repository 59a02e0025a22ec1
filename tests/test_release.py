"""What must agree before a version can be released, and that the links of the three files at the top lead somewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CITATION = dict(re.findall(r"^([\w-]+): (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE))
RECIPE = (ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
GUIDES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
ON_CONDA = {"msgpack": "msgpack-python", "zlib-ng": "python-zlib-ng"}
"""What conda-forge calls packages that have other names on PyPI."""


def test_all_files_name_one_version_and_one_day() -> None:
    version = PROJECT["project"]["version"]
    (heading, *older) = re.findall(r"^## (?!Unreleased$)(.*)$", CHANGELOG, re.MULTILINE)
    assert re.match(r"# Changelog\n\n.*\n\n## Unreleased\n", CHANGELOG)
    assert heading == f"{version} - {CITATION['date-released']}"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", each) for each in older)
    assert CITATION["version"] == version
    assert re.findall(r'^  version: "(.*)"$', RECIPE, re.MULTILINE) == [version]


def test_the_conda_package_needs_what_the_wheel_needs() -> None:
    required = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    pairs = [re.match(r"([\w-]+)(>=[\w.]+)", each).groups() for each in required]
    needed = re.findall(r"^    - ([a-z-]+ >=[\d.]+)$", RECIPE, re.MULTILINE)
    assert sorted(needed) == sorted(f"{ON_CONDA.get(name, name)} {least}" for name, least in pairs)
    assert f'python_min: "{PROJECT["project"]["requires-python"].removeprefix(">=")}"' in RECIPE
    assert "b2array = b2array.__main__:main" in RECIPE
    assert PROJECT["project"]["scripts"] == {"b2array": "b2array.__main__:main"}


def test_all_files_name_the_same_addresses() -> None:
    urls = PROJECT["project"]["urls"]
    assert set(urls) == {"Documentation", "Source", "Issues", "Changelog"}
    assert urls["Issues"] == f"{urls['Source']}/issues"
    assert urls["Changelog"].startswith(urls["Documentation"])
    assert (CITATION["repository-code"], CITATION["url"]) == (urls["Source"], urls["Documentation"])
    assert f"repository: {urls['Source']}\n" in RECIPE
    assert f"documentation: {urls['Documentation']}\n" in RECIPE
    for replacement in _substitutions().values():
        assert re.match(
            r"\]\(https://(?:b2array\.readthedocs\.io|(?:raw\.)?github\w*\.com/b2array/b2array)/", replacement
        )


@pytest.mark.parametrize("guide", GUIDES)
def test_the_links_lead_to_files_of_the_checkout(guide: str) -> None:
    links = _links((ROOT / guide).read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if ":" not in link and not (ROOT / link).exists()] == []


def test_links_of_the_readme_are_addresses_where_there_is_no_checkout() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for pattern, replacement in _substitutions().items():
        text = re.sub(pattern, replacement, text)
    assert [link for link in _links(text) if not link.startswith("https://")] == []
    assert "](https://b2array.readthedocs.io/en/stable/guarantees.html)" in text


def test_the_sdist_has_what_its_tests_read() -> None:
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
    # hatchling adds the licence and pyproject.toml; it does not see the README, which a plugin reads.
    assert {*GUIDES, "CITATION.cff", "asv_bench", "b2array", "docs", "recipe", "tests"} <= {*included}


def _links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", text)


def _substitutions() -> dict[str, str]:
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    return {each["pattern"]: each["replacement"] for each in hook["substitutions"]}
