"""Versions and hashes of what `make` installs: each pin with the hashes of its files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
WITHOUT_HASHES = {"torch"}
"""Its builds differ from place to place: for the CPU, for each CUDA, for each system."""


def pins() -> dict[str, str]:
    """The version of every package in the constraints."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert len(pairs) == len({canonicalize_name(name) for name, _ in pairs})
    return {canonicalize_name(name): version for name, version in pairs}


def hashes() -> dict[tuple[str, str], list[str]]:
    """The hashes of the files of each package and version."""
    text = (ROOT / "constraints-hashed.txt").read_text(encoding="utf-8")
    found = re.findall(r"^([^\s#=]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.M)
    # Nothing else is in the file: no index, no address, no requirement without a hash.
    lines = sum(1 + known.count("\n") for *_, known in found)
    assert lines == sum(not line.startswith("#") for line in text.splitlines())
    return {
        (canonicalize_name(name), version): re.findall("[0-9a-f]{64}", known)
        for name, version, known in found
    }


def test_every_pin_has_the_hashes_of_its_files() -> None:
    pinned = {pair for pair in pins().items() if pair[0] not in WITHOUT_HASHES}
    assert set(hashes()) == pinned, "run make hashes"
    assert all(len(set(known)) == len(known) for known in hashes().values())


def test_everything_that_a_group_asks_for_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    asked = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for group in project["dependency-groups"].values():
        asked += [item for item in group if isinstance(item, str)]
    known = pins()
    for requirement in map(Requirement, asked):
        name = canonicalize_name(requirement.name)
        assert name in known, name
        assert requirement.specifier.contains(known[name]), name


def test_a_release_is_built_from_packages_whose_hashes_are_known() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    runs = [step.get("run") for step in workflow["jobs"]["build"]["steps"]]
    assert runs.index("make verified") < runs.index("make dist") < runs.index("make sbom")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "--require-hashes -r constraints-hashed.txt" in makefile
    assert "build --no-isolation" in makefile  # so that no other build backend is fetched
