"""Repository files: present, well-formed and consistent."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
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


@pytest.mark.slow
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


FROM_INDEX = re.compile(
    r"(?:pip3? install|uvx|pipx (?:run|install)|uv (?:tool|pip) install|uv add)(?: -\S+)* +['\"]?finrl-pod\b(?!\[)"
)
INSTALLS = ("README.md", "docs/index.md", "docs/installation.md")


def test_nothing_installs_from_an_index_that_has_no_such_package() -> None:
    """Messages of the program name extras as finrl-pod[NAME], which adds to the version that is installed."""
    folders = [ROOT / name for name in ("docs", "deploy", "app", "finrl_pod", "envs", "strategies", "benchmarks")]
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(x for folder in folders for x in folder.rglob("*"))]
    texts = {str(x.relative_to(ROOT)): x.read_text() for x in files if x.suffix in (".md", ".py", ".ipynb", ".toml")}
    assert [name for name, text in texts.items() if FROM_INDEX.search(text)] == []
    assert [name for name in texts if name.endswith(".md") and "finrl-pod[" in texts[name]] == []


@pytest.mark.parametrize("name", INSTALLS)
def test_pages_start_from_a_checkout(name: str) -> None:
    commands = re.findall(r"^(?:make|pip|pipx|uvx|uv) .*", (ROOT / name).read_text(), re.MULTILINE)
    assert commands[0].startswith("make ")


def test_index_commands_are_recognised() -> None:
    for text in ("uvx finrl-pod demo", "pip install finrl-pod", "pip install -q 'finrl-pod'", "pipx run finrl-pod x"):
        assert FROM_INDEX.search(text)
    for text in ("uvx --from WHEEL finrl-pod demo", "pip install ./finrl_pod-1.whl", "pip install 'finrl-pod[ray]'"):
        assert not FROM_INDEX.search(text)


@pytest.mark.slow
def test_module_names_are_assigned_once() -> None:
    """A second constant of the same name silently changes what the functions above it use."""
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = Counter(
        (file, target.id)
        for file in tracked.split()
        for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id != "_"
    )
    assert names
    assert [name for name, count in names.items() if count > 1] == []


def test_setup_shows_the_progress_of_pip() -> None:
    """Installing takes minutes: a quiet one looks like one that hangs."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.split("$(STAMP): pyproject.toml")[1].split("\n\n")[0]
    commands = [line for line in recipe.splitlines() if "pip install" in line]
    assert len(commands) == 3
    assert not [line for line in commands if " -q" in line or "--quiet" in line]
