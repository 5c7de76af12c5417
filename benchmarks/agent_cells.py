"""Cells of the study of agents: an agent trained and tested in one fold of a market, beside its base."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from finrl_pod_app.services.champions import load_champion, member_ledgers
from finrl_pod_app.services.presets import LINEAR_PPO, preset
from finrl_pod_app.services.prices import load_panel
from finrl_pod_app.services.promotion import EvaluationContext
from finrl_pod_app.services.training import train
from finrl_pod_app.services.training_setup import make_market, training_env
from finrl_pod_app.services.trial_log import open_trial_log
from finrl_pod_strategies.baselines import make_baseline
from finrl_pod_strategies.mandate_account import BasePortfolio

from finrl_pod.data.splits import Splits, make_splits
from finrl_pod.evaluate.active_management import (
    ActiveStatistics,
    active_share,
    active_statistics,
    effective_number,
)
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.intervals import Interval, resample_bars
from finrl_pod.evaluate.metrics import simple_returns
from finrl_pod.market.rules import rules_of
from finrl_pod.promotion.trial_registry import TrialRegistry
from finrl_pod.protocols import Strategy
from finrl_pod.settings.algorithm_configs import AnalyticConfig, PPOConfig, SACConfig, SHACConfig
from finrl_pod.settings.run import AugmentationConfig, FeatureConfig, MandateConfig, RunConfig, SplitConfig
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import AgentSnapshot, BacktestResult, Floats, MarketTensor, Panel

HERE = Path(__file__).parent
RETURNS = HERE / ".agents"  # daily returns of each cell
SEEDS = (0, 1, 2)
DRAWS, BLOCK, LEVEL = 2_000, 63.0, 0.90  # bootstrap histories, mean block in bars, coverage
YEAR = 252

# Market -> fold -> (train, validation, test). The last four years are the final test.
FOLDS: Mapping[str, Mapping[str, SplitConfig]] = {
    "sample": {
        "2001-06": SplitConfig(
            ("1990-01-02", "1997-12-31"), ("1998-01-01", "2000-12-31"), ("2001-01-01", "2006-12-31")
        ),
        "2007-12": SplitConfig(
            ("1990-01-02", "2003-12-31"), ("2004-01-01", "2006-12-31"), ("2007-01-01", "2012-12-31")
        ),
        "2013-18": SplitConfig(
            ("1990-01-02", "2009-12-31"), ("2010-01-01", "2012-12-31"), ("2013-01-01", "2018-12-31")
        ),
    },
    "us74": {
        "2007-12": SplitConfig(
            ("2000-01-04", "2004-06-30"), ("2004-07-01", "2006-12-31"), ("2007-01-01", "2012-12-31")
        ),
        "2013-19": SplitConfig(
            ("2000-01-04", "2009-12-31"), ("2010-01-01", "2012-12-31"), ("2013-01-01", "2019-09-30")
        ),
    },
}
FINAL = {"sample": "2019-22", "us74": "2019-23"}  # the presets' own splits


class Cell(NamedTuple):
    """A training. fold: a fold, or that of `FINAL`."""

    market: str
    fold: str
    seed: int

    @property
    def part(self) -> str:
        return "final" if FINAL[self.market] == self.fold else "fold"


def default(market: str) -> RunConfig:
    """The default agent on a market: what `finrl-pod demo --data MARKET` trains."""
    return preset("laptop", market)


def _mandate(config: RunConfig, **changes: Any) -> RunConfig:
    return dataclasses.replace(config, mandate=dataclasses.replace(config.mandate, **changes))


def _augmentation(config: RunConfig, **changes: Any) -> RunConfig:
    return dataclasses.replace(config, augmentation=dataclasses.replace(config.augmentation, **changes))


def _agent(config: RunConfig, **changes: Any) -> RunConfig:
    return dataclasses.replace(config, agent=dataclasses.replace(config.agent, **changes))


def _tournament(config: RunConfig, **changes: Any) -> RunConfig:
    return dataclasses.replace(config, tournament=dataclasses.replace(config.tournament, **changes))


def _algorithm(config: RunConfig, agent: Any, envs: int, group: int, **tournament: Any) -> RunConfig:
    environment = dataclasses.replace(config.environment, envs=envs, group=group)
    return _tournament(dataclasses.replace(config, agent=agent, environment=environment), **tournament)


def _unbounded(config: RunConfig) -> RunConfig:
    """The default before there were mandates: PPO on unconstrained weights."""
    environment = dataclasses.replace(config.environment, envs=256, group=16, reward="log_return")
    return dataclasses.replace(
        config,
        mandate=MandateConfig(base="none"),
        agent=PPOConfig(),
        environment=environment,
        features=FeatureConfig(),
        augmentation=AugmentationConfig(),
        tournament=dataclasses.replace(RunConfig().tournament, samples_per_generation=100_000),
    )


AGENTS: Mapping[str, Callable[[RunConfig], RunConfig]] = {
    "default": lambda config: config,
    "unbounded": _unbounded,
    "ppo": lambda config: _algorithm(config, PPOConfig(), 256, 16, samples_per_generation=100_000),
    "sac": lambda config: _algorithm(config, SACConfig(), 64, 16, samples_per_generation=10_000),
    "analytic": lambda config: _algorithm(config, AnalyticConfig(horizon=63), 16, 1),
    "shac": lambda config: _algorithm(config, SHACConfig(horizon=32), 64, 1),
    "linear": lambda config: _agent(config, policy="linear"),
    "equivariant": lambda config: _agent(config, policy="equivariant", l1_penalty=0.0, weight_decay=0.0),
    "lookback": lambda config: _agent(config, encoder="convolution", lookback=21, l1_penalty=0.0, weight_decay=0.0),
    "no penalty": lambda config: _agent(config, l1_penalty=0.0, weight_decay=0.0),
    "two algorithms": lambda config: dataclasses.replace(config, cohorts=(LINEAR_PPO,)),
    # Ablations of the mandate, of the training worlds and of the tournament.
    "faster": lambda config: _mandate(config, trade_speed=0.2),
    "wider": lambda config: _mandate(config, tilt=1.0),
    "no equal means": lambda config: _augmentation(config, equal_means=False),
    "no bagging": lambda config: _augmentation(config, bagging_blocks=0),
    "bootstrap": lambda config: _augmentation(config, worlds=4, bootstrap_block=63),
    "sub-universes": lambda config: _augmentation(config, worlds=4, asset_share=0.5),
    "random costs": lambda config: _augmentation(config, worlds=4, cost_factor=3.0),
    "feature noise": lambda config: _augmentation(config, worlds=4, feature_noise=0.3),
    "best member": lambda config: _tournament(config, selection="best"),
    "all members": lambda config: _tournament(config, selection="all"),
    "greedy members": lambda config: _tournament(config, selection="greedy"),
    "no root limit": lambda config: _tournament(config, max_root_share=1.0, novelty=0.0),
}


# ---------------------------------------------------------------------- one training


class Trained(NamedTuple):
    """A champion, its members, and the market and splits that it was trained on."""

    champion: Strategy
    members: list[AgentSnapshot]
    market: MarketTensor
    splits: Splits


class Tested(NamedTuple):
    """A champion on its test bars. members: equity [T, M] of its members, each on a separate account."""

    champion: BacktestResult
    members: Floats
    base: BacktestResult
    equal_weight: BacktestResult


def train_agent(config: RunConfig, panel: Panel) -> Trained:
    """Train on the training split and choose on validation."""
    splits = make_splits(panel.times, config.splits)
    market = make_market(panel, config, splits)
    context = EvaluationContext(config, panel, splits, market, training_env(config, market, splits, (0,)).last)
    with TemporaryDirectory(prefix="finrl-pod-agents-") as folder:
        run = RunDirectory.create(Path(folder) / "run", config, panel.sha256)
        registry = TrialRegistry(Path(folder) / "trials.sqlite")
        log = open_trial_log(registry, run, config, panel, market, splits)
        _, members = train(context, run, log, torch.device("cpu"))
        champion = load_champion(run, members)
        return Trained(champion, [run.snapshot(agent) for agent in dict.fromkeys(members.ids)], market, splits)


def run_agent(config: RunConfig, panel: Panel, mandate: MandateConfig) -> Tested:
    """Train an agent and backtest it on test. mandate: of the base."""
    champion, members, market, splits = train_agent(config, panel)
    span = splits.test.first, splits.test.last
    terms = (panel, market, *span, rules_of(config.environment), config.environment.cash)
    return Tested(
        backtest(champion, *terms),
        np.concatenate([ledger.equity.numpy() for _, ledger in member_ledgers(members, market, config, *span)], 1),
        backtest(BasePortfolio(mandate, config.environment.leverage), *terms),
        backtest(make_baseline("equal_weight"), *terms),
    )


def config_of(agent: str, cell: Cell) -> RunConfig:
    """Config of an agent in a cell."""
    config = default(cell.market)
    splits = config.splits if cell.part == "final" else FOLDS[cell.market][cell.fold]
    splits = dataclasses.replace(splits, embargo=config.splits.embargo)
    return dataclasses.replace(AGENTS[agent](config), seed=cell.seed, splits=splits)


def same_as_default() -> list[str]:
    """Other names of agents whose config is the default's: their rows are its rows."""
    config = default("sample")
    return [name for name, change in AGENTS.items() if name != "default" and change(config) == config]


def measure_cell(agent: str, cell: Cell) -> list[dict[str, Any]]:
    """Rows of an agent in a cell; of its members too for the default."""
    config = config_of(agent, cell)
    tested = run_agent(config, load_panel(config), default(cell.market).mandate)
    settings = {"market": cell.market, "fold": cell.fold, "seed": cell.seed, "agent": agent, "part": cell.part}
    RETURNS.mkdir(exist_ok=True)
    rows = []
    for name in (agent, *same_as_default()) if agent == "default" else (agent,):
        np.savez(
            RETURNS / f"{name}-{cell.market}-{cell.fold}-{cell.seed}.npz".replace(" ", "_"),
            agent=simple_returns(tested.champion.equity),
            base=simple_returns(tested.base.equity),
            equal_weight=simple_returns(tested.equal_weight.equity),
        )
        rows += comparison_rows(tested.champion, tested.base, tested.equal_weight, {**settings, "agent": name})
    if agent == "default":
        base = simple_returns(tested.base.equity)
        found = [
            active_statistics(simple_returns(equity), base, LEVEL, draws=DRAWS, mean_block=BLOCK).sharpe_difference
            for equity in tested.members.T
        ]
        mean = Interval(*(float(x) for x in np.mean(found, axis=0)))
        rows.append(row("sharpe_difference", mean, {**settings, "agent": "member", "members": len(found)}))
    return rows


# ---------------------------------------------------------------------- statistics


def comparison_rows(
    champion: BacktestResult, base: BacktestResult, equal_weight: BacktestResult, settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Rows of an account beside its base: differences with intervals, and what it held and traded."""
    found = statistics_of(champion, base)
    rows = [
        row("sharpe_difference", found.sharpe_difference, settings),
        row("information_ratio", found.information_ratio, settings),
        row("alpha", found.alpha, settings),
        row("beta", found.beta, settings),
        row("sharpe_difference_to_equal_weight", statistics_of(champion, equal_weight).sharpe_difference, settings),
    ]
    held, reference = champion.weights[len(champion.weights) // 4 :], base.weights[len(base.weights) // 4 :]
    numbers = {
        "years_to_show": found.years_to_show,
        "tracking_error": found.tracking_error,
        "turnover": champion.metrics["turnover"] / 2,
        "effective_holdings": float(np.nanmean(effective_number(held))),
        "active_share": float(np.nanmean(active_share(held, reference))),
        "drawdown": champion.metrics["max_drawdown"],
        "base_drawdown": base.metrics["max_drawdown"],
        "sharpe": champion.metrics["sharpe"],
        "base_sharpe": base.metrics["sharpe"],
        "volatility": champion.metrics["annual_volatility"],
    }
    rows[0]["config"] |= numbers
    return rows


def statistics_of(account: BacktestResult, base: BacktestResult) -> ActiveStatistics:
    """Active statistics of an account, with intervals from blocks of a quarter on average."""
    own, other = simple_returns(account.equity), simple_returns(base.equity)
    return active_statistics(own, other, LEVEL, draws=DRAWS, mean_block=BLOCK)


def sharpe_ratio(returns: Floats) -> Floats:
    """Annual Sharpe ratios [D] of simple returns [D, T]."""
    deviation = returns.std(1, ddof=1)
    return np.asarray(returns.mean(1) / np.where(deviation > 0, deviation, np.inf) * np.sqrt(YEAR))


def pooled(agent: str, rows: Sequence[Mapping[str, Any]], part: str = "fold") -> Interval | None:
    """Mean difference of Sharpe ratios over cells, seeds averaged; None without the cells' returns.

    The bootstrap draws the same blocks for all seeds of a cell, and for cells of the same fold.
    """
    cells: dict[tuple[str, str], list[tuple[Floats, Floats]]] = {}
    for row in rows:
        config = row["config"]
        if row["name"] != "sharpe_difference" or config["agent"] != agent or config["part"] != part:
            continue
        name = f"{agent}-{config['market']}-{config['fold']}-{config['seed']}.npz".replace(" ", "_")
        if not (RETURNS / name).exists():
            return None
        with np.load(RETURNS / name) as kept:
            cells.setdefault((config["market"], config["fold"]), []).append((kept["agent"], kept["base"]))
    if not cells:
        return None
    values, drawn = [], np.zeros(DRAWS)
    for (_, fold), seeds in cells.items():
        length = len(seeds[0][0])
        stream = np.random.default_rng([int(fold[:4])])
        bars = resample_bars(length, BLOCK, DRAWS, stream)
        values.append(np.mean([float(sharpe_ratio(a[None])[0] - sharpe_ratio(b[None])[0]) for a, b in seeds]))
        drawn += np.mean([sharpe_ratio(a[bars]) - sharpe_ratio(b[bars]) for a, b in seeds], axis=0) / len(cells)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(np.mean(values)), float(low), float(high))


def row(name: str, interval: Interval, config: Mapping[str, Any]) -> dict[str, Any]:
    method = {"interval": f"{LEVEL:.0%} block bootstrap"}
    return {"name": name, **interval._asdict(), "unit": "", "config": {**config, **method}}
