"""Repository files: present, well-formed and consistent."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from finrl_pod import __version__

ROOT = Path(__file__).parent.parent
SCHEMAS = {
    "vendor.github-workflows": ".github/workflows/*.yml",
    "vendor.github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "vendor.github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "vendor.citation-file-format": "CITATION.cff",
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_github_files_follow_their_schema(schema: str) -> None:
    files = sorted(ROOT.glob(SCHEMAS[schema]))
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflow_runs_the_ci_script() -> None:
    assert "run: .ci/run" in (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")


def test_version_is_defined_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"]["path"] == "finrl_pod/__init__.py"
    assert re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?", __version__)


def test_changelog_format() -> None:
    """Keep a Changelog: releases as `## [x]`, entries under the four kinds of changes that the project uses."""
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    releases = [line for line in lines if line.startswith("## ")]
    assert releases[0] == "## [Unreleased]"
    heading = re.compile(r"## \[(Unreleased|\d+\.\d+\.\d+(rc\d+)?)\]( - \d{4}-\d{2}-\d{2})?")
    assert all(heading.fullmatch(line) for line in releases)
    kinds = {line.removeprefix("### ") for line in lines if line.startswith("### ")}
    assert kinds <= {"Added", "Changed", "Fixed", "Removed", "Deprecated", "Security"}
    assert "Added" in kinds


@pytest.mark.parametrize(
    "name",
    [
        *("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CITATION.cff", "CHANGELOG.md", "LICENSE"),
        *(".editorconfig", ".pre-commit-config.yaml", ".clang-format"),
    ],
)
def test_standard_files_are_present(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8").strip()
