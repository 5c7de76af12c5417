"""A synthetic panel in a temporary store, and a config that runs the whole pipeline within seconds."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_app.evaluation import backtests
from finrl_pod_app.evaluation.finished_backtest import BacktestTerms
from finrl_pod_app.report.records import RunReport
from finrl_pod_app.training import tournaments as training

from finrl_pod.data.store import Store
from finrl_pod.settings.run import (
    DataConfig,
    EnvironmentConfig,
    FeatureConfig,
    PPOConfig,
    RunConfig,
    SplitConfig,
    TournamentConfig,
)
from finrl_pod.types import Benchmark, Panel
from tests.data.panels import panel

BARS = 700  # days from 2020-01-01 to 2021-11-30


def small_panel(name: str = "main", assets: int = 4, seed: int = 11, benchmark: bool = True) -> Panel:
    """Random-walk closes with a common market factor."""
    rng = np.random.default_rng(seed)
    log_returns = rng.normal(4e-4, 0.012, (BARS, assets)) + rng.normal(0, 0.006, (BARS, 1))
    index = Benchmark("main index", 1000 * np.exp(log_returns.mean(1).cumsum()), price_only=True)
    prices = panel(40 * np.exp(log_returns.cumsum(0)), name=name, source="main")
    return dataclasses.replace(prices, benchmark=index if benchmark else None)


def fill_store(root: Path) -> Store:
    """Create a store with the panels "main" (four tickers and an index) and "other" (three other tickers, no index)."""
    store = Store(root)
    store.save(small_panel())
    other = small_panel("other", 3, seed=12, benchmark=False)
    store.save(dataclasses.replace(other, symbols=("X", "Y", "Z")))
    return store


@contextlib.contextmanager
def isolated_folders(folder: Path) -> Iterator[Path]:
    """Context manager: a filled store and a trial registry in `folder`; restores torch's thread count on exit."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINRL_POD_DATA", str(folder / "store"))
        patch.setenv("FINRL_POD_HOME", str(folder / "home"))
        fill_store(folder / "store")
        yield folder
    torch.set_num_threads(threads)


def small_config(**tournament: Any) -> RunConfig:
    """A config with three pods, three generations and two features."""
    settings = {
        "pods": 3,
        "generations": 3,
        "samples_per_generation": 128,
        "leaderboard": 4,
        "champion": 2,
        "reinit_fraction": 0.34,
    }
    return RunConfig(
        seed=5,
        threads=1,
        data=DataConfig("main"),
        splits=SplitConfig(
            train=("2020-01-01", "2021-03-31"),
            validation=("2021-04-01", "2021-06-30"),
            test=("2021-07-01", "2021-10-31"),
            embargo=2,
        ),
        features=FeatureConfig(("return_1", "return_5")),
        environment=EnvironmentConfig(window=40, envs=16, group=4),
        agent=PPOConfig(hidden=(4, 4), horizon=8, minibatches=2),
        tournament=TournamentConfig(**{**settings, **tournament}),
    )


def run_backtest(*target: Any, **options: Any) -> dict[str, Any]:
    """The contents of report.json of a backtest, from `services.backtests.run_backtest`."""
    names = {field.name for field in dataclasses.fields(BacktestTerms)} - {"cost_bps", "cash"}
    terms = BacktestTerms(**{name: options.pop(name) for name in names & options.keys()})
    return backtests.run_backtest(*target, terms=terms, **options).to_dict()


def run_tournament(*config: Any, **options: Any) -> dict[str, Any]:
    """The contents of report.json or result.json of a tournament, from `services.training.run_tournament`."""
    result = training.run_tournament(*config, **options)
    return result.to_dict() if isinstance(result, RunReport) else result
