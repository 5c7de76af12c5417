"""Dependencies: every imported package is declared, and a missing optional one is named with its command."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from finrl_pod_app.setup.doctor import OPTIONAL_PACKAGES, missing_package

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OWN = {"finrl_pod", "finrl_pod_envs", "finrl_pod_strategies", "finrl_pod_app"}
FOLDERS = ("finrl_pod", "envs/finrl_pod_envs", "strategies/finrl_pod_strategies", "app/finrl_pod_app")
# Imported where the user's own installation has them, or by benchmarks of the peers that they are.
UNDECLARED = {"isaacgym", "pettingzoo", "triton", "stable_baselines3", "bt", "vectorbt"}
OF_ALPACA_PY = {"requests", "urllib3", "websockets"}  # its session, the pools below it, and its stream
OF_STREAMLIT = {"starlette"}  # its server


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!\[;~ ]", name)[0]).lower()


def imported() -> set[str]:
    found = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom):
                    names = [str(node.module)]
                found |= {name.split(".")[0] for name in names}
    return found - set(sys.stdlib_module_names) - OWN


@pytest.mark.slow
def test_every_imported_package_is_declared() -> None:
    core = {normal(requirement) for requirement in PROJECT["dependencies"]}
    optional = {package.module for package in OPTIONAL_PACKAGES}
    distributions = packages_distributions()
    missing = {
        module
        for module in imported() - optional - UNDECLARED - OF_ALPACA_PY - OF_STREAMLIT
        if not core & {normal(name) for name in distributions.get(module, [module])}
    }
    assert not missing


@pytest.mark.slow
def test_every_core_dependency_is_imported() -> None:
    modules = imported()
    distributions = packages_distributions()
    used = {normal(name) for module in modules for name in distributions.get(module, [module])}
    assert {normal(requirement) for requirement in PROJECT["dependencies"]} <= used


def test_extras_contain_their_packages() -> None:
    for package in OPTIONAL_PACKAGES:
        requirements = {normal(text) for text in PROJECT["optional-dependencies"][package.extra]}
        assert normal(package.name) in requirements, package.name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "extra", "command"),
    [
        ("sqlalchemy", "paper", ["paper", "demo"]),
        ("exchange_calendars", "paper", ["paper", "demo"]),
        ("talib", "indicators", ["backtest", "--strategy", "{file}:Rsi"]),
    ],
)
def test_a_missing_extra_is_one_sentence(module: str, extra: str, command: list[str], tmp_path: Path) -> None:
    """In its own process, which has imported nothing yet."""
    strategy = tmp_path / "ideas.py"
    strategy.write_text(
        "class Rsi:\n    name = 'rsi'\n    feature_names = ('rsi_30',)\n    lookback = 1\n\n"
        "    def target_weights(self, window, positions):\n        return None\n"
    )
    arguments = [part.format(file=strategy) for part in command]
    script = (
        f"import sys; sys.modules[{module!r}] = None\n"
        f"from finrl_pod_app.cli.main import run\nsys.exit(run({arguments!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "FINRL_POD_HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert done.returncode == 2
    assert f"pip install 'finrl-pod[{extra}]'" in done.stderr.splitlines()[-1]


def test_other_missing_modules_are_not_explained() -> None:
    assert missing_package(ModuleNotFoundError("no such module", name="os_x")) is None


def test_table_of_extras_is_complete() -> None:
    """Each extra for users has a row in the docs, which lists its packages."""
    page = (ROOT / "docs/installation.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z0-9]+)` \| [^|]* \| ([^|]*) \|$", page, re.MULTILINE))
    extras = {name: set(map(normal, packages)) for name, packages in PROJECT["optional-dependencies"].items()}
    del extras["dev"]
    assert set(rows) == set(extras)
    for name, text in rows.items():
        listed = set(map(normal, text.removesuffix(" and others").split(", ")))
        assert listed == extras[name] or (text.endswith(" and others") and listed < extras[name]), name
