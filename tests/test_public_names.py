"""The public names of `import finrl_pod`: which there are, that they are lazy, and that the stub lists the same."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import finrl_pod

PUBLIC = {
    *("BacktestResult", "DiscreteTradingEnv", "FinrlPodError", "GymMarketEnv", "GymVectorEnv", "Learner"),
    *("MarketTensor", "Panel", "PolicyStrategy", "PortfolioEnv", "RunConfig", "Setup", "StockTradingEnv"),
    *("Store", "Strategy", "VecEnv", "backtest", "load_agent", "load_config", "make_env", "make_panel"),
    *("Backtest", "BasePolicy", "BaseVecEnv", "LossAlgorithm", "TrainedAgent", "audit", "check", "judge"),
    *("judge_returns", "orders"),
    *(
        "load_prices",
        "load_run",
        "make_market",
        "register_algorithm",
        "register_policy",
        "run_tournament",
        "walkforward",
    ),
    *("open_logger", "prepare", "register_feature", "save_agent", "train", "__version__"),
    *("EnvAgents", "load_env_agents", "train_env"),
}


def test_public_names_are_locked() -> None:
    assert set(finrl_pod.__all__) == PUBLIC
    assert set(dir(finrl_pod)) >= PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(finrl_pod, name)
    assert value is getattr(finrl_pod, name)
    if callable(value):
        assert value.__doc__


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        finrl_pod.absent  # noqa: B018


def test_stub_types_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse(Path(str(finrl_pod.__file__)).with_suffix(".pyi").read_text(encoding="utf-8"))
    typed = {
        alias.asname: f"{node.module}:{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == finrl_pod._PUBLIC


def test_importing_the_package_loads_no_heavy_module() -> None:
    code = "import sys, finrl_pod; print({'torch', 'numpy', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
