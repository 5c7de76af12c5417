"""Real prices of the study of agents: development folds and sub-universes, placebos, and failing stocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from finrl_pod_app.prices.market_setup import make_market
from finrl_pod_app.prices.stored_prices import load_panel
from finrl_pod_app.setup.presets import preset
from finrl_pod_app.training.start_policy import score_updates

from benchmarks.agents import accounts, statistics
from benchmarks.harness.rows import FOLDER
from finrl_pod import random
from finrl_pod.data.panel import make_panel
from finrl_pod.data.splits import REWARD_LAG, Splits, make_splits
from finrl_pod.evaluate.active_management import active_share
from finrl_pod.evaluate.backtest import Ledger
from finrl_pod.evaluate.metrics import simple_returns
from finrl_pod.rl.algorithms.closed_form import scaled, solve, tilt_returns
from finrl_pod.settings.algorithm_configs import AnalyticConfig, PPOConfig, SACConfig, SHACConfig, TrainedAgentConfig
from finrl_pod.settings.run import RunConfig, SplitConfig
from finrl_pod.types import Floats, Panel

RETURNS = FOLDER / ".agents"  # daily returns of each account
UNIVERSES = 10
UNIVERSE_SIZE = 30
SEEDS = 5
PLACEBOS = 30
FAILURE_RATES = (0.01, 0.02)
FAILURE_LOSS = 0.5
FAILURE_DRAWS = 10

# Market -> fold -> (train, validation, test). Later years are never tested here.
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
FIXED_TILTS = {
    "momentum": ("momentum_252_21", 1.0),
    "reversal": ("return_5", -1.0),
    "low volatility": ("volatility_252", -1.0),
}
# RL from the solved start with the equivariant policy: settings, environments, accounts a group, samples a member.
SOLVED: Mapping[str, Any] = {"policy": "equivariant", "start": "closed_form", "weight_decay": 1.0}
RL: Mapping[str, tuple[TrainedAgentConfig, int, int, int]] = {
    "analytic": (AnalyticConfig(**SOLVED, horizon=32, learning_rate=0.03, exploration_noise=0.0), 16, 1, 40_000),
    "analytic, rate 0.001": (
        AnalyticConfig(**SOLVED, horizon=32, learning_rate=0.001, exploration_noise=0.0),
        16,
        1,
        40_000,
    ),
    "ppo": (PPOConfig(**SOLVED), 64, 16, 100_000),
    "shac": (SHACConfig(**SOLVED, horizon=32, learning_rate=0.003), 16, 1, 40_000),
    "sac": (SACConfig(**SOLVED, learning_starts=1_000), 16, 16, 4_000),
}


class Cell(NamedTuple):
    """A market and a fold; universe: number of a sub-universe of us74, None for all stocks."""

    market: str
    fold: str
    universe: int | None = None


class CellData(NamedTuple):
    """The problem of a cell with its config, prices and splits."""

    problem: accounts.Problem
    config: RunConfig
    panel: Panel
    splits: Splits


def cells() -> Iterator[Cell]:
    """All cells: the five folds, then each sub-universe on the folds of us74."""
    yield from (Cell(market, fold) for market, folds in FOLDS.items() for fold in folds)
    yield from (Cell("us74", fold, universe) for universe in range(UNIVERSES) for fold in FOLDS["us74"])


def cell_data(cell: Cell) -> CellData:
    """Prices, splits and rules of a cell: as in the preset "laptop"."""
    config = preset("laptop", cell.market)
    splits = dataclasses.replace(FOLDS[cell.market][cell.fold], embargo=config.splits.embargo)
    config = dataclasses.replace(config, splits=splits)
    if cell.universe is not None:
        names = load_panel(config).symbols
        rng = np.random.default_rng(43)
        columns = [sorted(rng.choice(len(names), UNIVERSE_SIZE, replace=False)) for _ in range(UNIVERSES)][
            cell.universe
        ]
        symbols = tuple(names[i] for i in columns)
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, symbols=symbols))
    panel = load_panel(config)
    return data_of(config, panel)


def data_of(config: RunConfig, panel: Panel) -> CellData:
    """The market of prices, with the splits and rules of a config."""
    splits = make_splits(panel.times, config.splits)
    market = make_market(panel, config, splits)
    spans = ((max(splits.train.first, market.first), splits.train.last), (splits.test.first, splits.test.last))
    return CellData(accounts.Problem(market, config.environment, config.mandate, *spans), config, panel, splits)


def conditions(problem: accounts.Problem) -> Iterator[tuple[str, accounts.Problem]]:
    """Name and problem of each condition of the test."""
    yield "as they are", problem
    rules = problem.environment
    costly = dataclasses.replace(rules, cost_bps=2 * rules.cost_bps)
    spread = problem.market.half_spread
    market = dataclasses.replace(problem.market, half_spread=None if spread is None else 2 * spread)
    yield "doubled costs", problem._replace(environment=costly, market=market)
    yield "one more bar of delay", problem._replace(environment=dataclasses.replace(rules, delay=2))


def linear_rows(cell: Cell, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of the fixed tilts and of the closed form in a cell, under each condition."""
    problem = cell_data(cell).problem
    weights = {name: accounts.fixed_tilt(problem, *tilt) for name, tilt in FIXED_TILTS.items()}
    weights["closed form"] = accounts.closed_form_weights(problem)
    all_weights = torch.stack([torch.zeros_like(weights["closed form"]), *weights.values()])
    rows = []
    for condition, condition_problem in conditions(problem):
        result = accounts.ledger(condition_problem, accounts.linear(condition_problem, all_weights))
        rows += [
            account_row(result, i + 1, result, 0, {**settings, "agent": name, "condition": condition, "seed": 0}, cell)
            for i, name in enumerate(weights)
        ]
    return rows


def rl_rows(name: str, cell: Cell, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of RL from the solved start in a cell: every seed by itself, and all seeds as one ensemble.

    The number of updates is chosen by five purged folds of the training bars.
    """
    data = cell_data(cell)
    agent, envs, group, samples = RL[name]
    problem = data.problem
    rules = dataclasses.replace(problem.environment, envs=envs, group=group)
    problem = problem._replace(environment=rules)
    tournament = dataclasses.replace(data.config.tournament, generations=1, samples_per_generation=samples)
    config = dataclasses.replace(data.config, environment=rules, tournament=tournament, threads=1)
    tilts = tilt_returns(problem.market, rules, problem.mandate, problem.train[0], problem.train[1] - REWARD_LAG + 1)
    start = scaled(solve(tilts), problem.market, problem.train[0], problem.train[1] - REWARD_LAG)
    update_scores = score_updates(config, agent, problem.market, data.splits, tilts)
    members = accounts.train_agents(problem, agent, round(samples * update_scores.chosen), SEEDS, 0, start)
    at_scale = accounts.at_score_scale(problem, members)
    rows = []
    for condition, condition_problem in conditions(problem):
        base = accounts.ledger(condition_problem, accounts.linear(condition_problem, torch.zeros(1, len(start))))
        single = accounts.ledger(condition_problem, at_scale)
        together = accounts.ledger(condition_problem, accounts.ensembles(at_scale, SEEDS))
        row_config = {**settings, "agent": f"rl {name}", "condition": condition, "share": update_scores.chosen}
        rows += [account_row(single, i, base, 0, {**row_config, "seed": i}, cell) for i in range(SEEDS)]
        row_config = {**row_config, "agent": f"rl {name}, ensemble"}
        rows.append(account_row(together, 0, base, 0, {**row_config, "seed": 0}, cell))
    return rows


def account_row(
    account: Ledger, i: int, base: Ledger, j: int, settings: Mapping[str, Any], cell: Cell
) -> dict[str, Any]:
    """Row of account i of a ledger beside account j of another; its returns are kept in a file."""
    pair = [np.asarray(simple_returns(x.equity[:, k].numpy())) for x, k in ((account, i), (base, j))]
    account_weights = account.weights[63:, i].numpy()
    reference = base.weights[63:, j].numpy()
    settings = {**settings, **cell._asdict()}
    RETURNS.mkdir(exist_ok=True)
    np.savez(returns_file(settings), own=pair[0], base=pair[1])
    result = statistics.pool_measures({f"{cell.market}/{cell.fold}": [(pair[0], pair[1])]})
    numbers = {name: value[0] for name, value in result.items()} | {
        "active_share": float(np.nanmean(active_share(account_weights, reference))),
        "turnover": float(account.turnover[1:, i].mean()) * statistics.YEAR / 2,
        "drawdown": _drawdown(pair[0]),
        "base_drawdown": _drawdown(pair[1]),
        "base_sharpe": float(pair[1].mean() / pair[1].std(ddof=1) * np.sqrt(statistics.YEAR)),
    }
    return statistics.record("sharpe_difference", *result["sharpe_difference"], {**settings, **numbers})


def returns_file(settings: Mapping[str, Any]) -> Any:
    """File of the daily returns of a row."""
    keys = ("agent", "market", "fold", "universe", "seed", "condition")
    return RETURNS / ("_".join(str(settings[key]) for key in keys).replace(" ", "-") + ".npz")


def _drawdown(returns: Floats) -> float:
    growth = np.cumprod(1 + np.concatenate([[0.0], returns]))
    return float((growth / np.maximum.accumulate(growth) - 1).min())


def placebo_row(cell: Cell, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Row of a fold: Sharpe differences and information ratios of agents solved on sets of random features.

    All sets are features of one market: an account of a set has no weight on the features of others.
    """
    problem = cell_data(cell).problem
    market = problem.market
    first = problem.train[0]
    last = problem.train[1] - REWARD_LAG
    bars, assets, features = market.shape
    noise = np.empty((bars, assets, PLACEBOS * features), dtype=np.float32)
    for i in range(PLACEBOS * features):
        life = half_life(market.features[market.first :, :, i % features].double().numpy())
        noise[..., i] = persistent(i, cell, bars, assets, life)
    random_market = dataclasses.replace(market, features=torch.from_numpy(noise))
    random_problem = problem._replace(market=random_market)
    tilts = tilt_returns(random_market, problem.environment, problem.mandate, first, last + 1)
    weights = torch.zeros(1 + PLACEBOS, PLACEBOS * features)
    for k in range(PLACEBOS):
        set_columns = slice(k * features, (k + 1) * features)
        account = np.zeros(PLACEBOS * features)
        account[set_columns] = solve(
            dataclasses.replace(tilts, gross=tilts.gross[set_columns], net=tilts.net[set_columns])
        )
        weights[1 + k] = scaled(account, random_market, first, last)
    result = accounts.returns(random_problem, accounts.linear(random_problem, weights))
    scores = statistics.measures(result[1:], np.broadcast_to(result[0], result[1:].shape))
    value = float(scores["sharpe_difference"].mean())
    sets = {name: scores[name].tolist() for name in ("sharpe_difference", "information_ratio")}
    return statistics.single_record("placebo_sets", value, {**settings, **cell._asdict(), **sets})


def half_life(values: Floats) -> float:
    """Half-life in bars of cross-sectional deviations of a feature [T, N], from their autocorrelation at lag 5."""
    deviations = values - values.mean(1, keepdims=True)
    now = deviations[:-5]
    future = deviations[5:]
    correlation = float((now * future).mean() / np.sqrt((now**2).mean() * (future**2).mean() + 1e-12))
    return float(5 * np.log(0.5) / np.log(np.clip(correlation, 0.05, 0.999)))


def persistent(column: int, cell: Cell, bars: int, assets: int, life: float) -> Floats:
    """AR(1) noise [T, N] of unit variance with a half-life in bars."""
    fold = [*FOLDS[cell.market]].index(cell.fold)
    rng = np.random.default_rng(random.key(43, column, f"placebo {cell.market} {fold}"))
    return statistics.autoregressive(rng, bars, assets, life)


def stress_rows(cell: Cell, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of a fold, one per rate of failures: mean difference of Sharpe ratios over draws, with its range.

    A stock that fails is delisted and pays half of its last price. The closed form is solved on prices as they are.
    """
    data = cell_data(cell)
    start = accounts.closed_form_weights(data.problem)
    rows = []
    for rate in FAILURE_RATES:
        scores = []
        failures = []
        for draw in range(FAILURE_DRAWS):
            panel, failure_count = with_failures(data.panel, data.problem.test, rate, draw)
            stress_problem = data_of(data.config, panel).problem
            rules = dataclasses.replace(stress_problem.environment, delisting_return=-FAILURE_LOSS)
            agents = accounts.linear(stress_problem, torch.stack([0 * start, start]))
            base, account = accounts.returns(stress_problem, agents, environment=rules)
            scores.append(float(statistics.measures(account[None], base[None])["sharpe_difference"][0]))
            failures.append(failure_count)
        row_config = {
            "agent": "closed form",
            "rate": rate,
            "draws": FAILURE_DRAWS,
            "failures": float(np.mean(failures)),
        }
        value = float(np.mean(scores))
        rows.append(
            statistics.record(
                "stress_difference", value, min(scores), max(scores), {**settings, **cell._asdict(), **row_config}
            )
        )
    return rows


def with_failures(panel: Panel, test: tuple[int, int], rate: float, draw: int) -> tuple[Panel, int]:
    """The panel with stocks that fail in the test bars at an annual rate, and their number: no prices from there on."""
    rng = np.random.default_rng(random.key(draw, round(rate * 1_000), "failures"))
    closes = panel.close.copy()
    bars = test[0] + np.ceil(rng.exponential(statistics.YEAR / rate, panel.close.shape[1])).astype(int)
    for asset, bar in enumerate(bars):
        if bar < test[1]:
            closes[bar:, asset] = np.nan
    fields = {"close": closes} if panel.spread is None else {"close": closes, "spread": panel.spread}
    failure_count = int((bars < test[1]).sum())
    return make_panel(
        panel.times, panel.symbols, fields, name=panel.name, source=f"{panel.source}, with failures"
    ), failure_count
