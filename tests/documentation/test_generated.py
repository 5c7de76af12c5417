"""Generated pages and pictures are up to date; lines are short; settings, source files and links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from finrl_pod_app.cli.command_reference import reference
from finrl_pod_app.setup.glossary import page

from tests.documentation.blocks import PAGES, ROOT

LINE = 297
SECTIONS = "data|splits|features|environment|mandate|tournament|gate|agent"
DAEMON_SECTIONS = "broker|schedule|intraday|orders|risk|timing|monitoring"
SETTING = re.compile(rf"`({SECTIONS}|{DAEMON_SECTIONS})\.(?!json\b|onnx\b)([a-z_]+)\b")
SOURCE_FILE = re.compile(r"`((?:\w+/)*\w+\.(?:py|cpp|h))`")
PACKAGES = [ROOT / base for base in ("finrl_pod", "envs", "strategies", "app")]
BASES = ("", "finrl_pod", "envs/finrl_pod_envs", "strategies/finrl_pod_strategies", "app/finrl_pod_app", "tests/paper")
OF_READERS = ("my", "own_files/", "cartpole.py", "pairs.py")  # files that a page lets its reader write
IDENTIFIER = re.compile(r"`(_?[A-Z]\w+|_\w+)`")


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_page_of_commands_is_up_to_date() -> None:
    page = ROOT / "docs/reference/commands.md"
    assert page.read_text(encoding="utf-8") == reference(), (
        "run: python -m finrl_pod_app.cli.command_reference > docs/reference/commands.md"
    )


def test_the_glossary_is_up_to_date() -> None:
    assert (ROOT / "docs/glossary.md").read_text(encoding="utf-8") == page(), (
        "run: python -m finrl_pod_app.setup.glossary > docs/glossary.md"
    )


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_lines_are_short(page: Path) -> None:
    assert max(map(len, page.read_text(encoding="utf-8").splitlines())) <= LINE


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_settings_exist(page: Path) -> None:
    known = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    for table, name in SETTING.findall(page.read_text(encoding="utf-8")):
        sections = re.findall(rf"^### \[{table}\].*?\n(.*?)(?=^### |\Z)", known, re.DOTALL | re.MULTILINE)
        assert sections, table
        assert any(f"| `{name}` |" in section for section in sections), f"{table}.{name}"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_linked_files_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_source_files_exist(page: Path) -> None:
    for file in SOURCE_FILE.findall(page.read_text(encoding="utf-8")):
        known = (ROOT / base / file for base in BASES) if "/" in file else ROOT.glob(f"[a-z]*/**/{file}")
        assert file.startswith(OF_READERS) or any(path.is_file() for path in known), file


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", ROOT / "docs/architecture.md"], ids=relative)
def test_identifiers_exist(page: Path) -> None:
    code = {word for path in PACKAGES for file in path.rglob("*.py") for word in re.findall(r"\w+", file.read_text())}
    assert set(IDENTIFIER.findall(page.read_text(encoding="utf-8"))) <= code
