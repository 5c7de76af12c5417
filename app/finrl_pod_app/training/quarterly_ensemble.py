"""The quarterly ensemble of FinRL: train several algorithms, trade a quarter with the best of the quarter before.

Yang et al. 2020, "Deep Reinforcement Learning for Automated Stock Trading: An Ensemble Strategy". Beside it are the
mean of all algorithms and random choices: a Sharpe ratio over 63 days has a standard error of 2, and a choice by it is
hardly better than a random one. Each quarter and algorithm is an ordinary run in OUT/quarter-01/ppo.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.scheduled import ScheduledStrategy

from finrl_pod.data.dates import stamp
from finrl_pod.data.splits import Fold, Span, make_splits, walk_forward_folds
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError, Interrupted
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.metrics import BARS_PER_YEAR
from finrl_pod.files import to_plain, write_json, write_text
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.promotion.trial_log import LookCount, log_look, span_dates
from finrl_pod.promotion.trial_registry import TrialRegistry
from finrl_pod.settings.algorithm_configs import TrainedAgentConfig
from finrl_pod.settings.algorithm_registry import algorithm_info
from finrl_pod.settings.run import RunConfig, parse
from finrl_pod.tournament.progress import Progress, ProgressCallback
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import BacktestResult, Panel
from finrl_pod.user_files import pinned, unpinned
from finrl_pod_app.evaluation.champions import period_of, reference_strategy, strategy_identity
from finrl_pod_app.prices.market_setup import with_effective_settings
from finrl_pod_app.prices.stored_prices import load_panel, with_stored_splits
from finrl_pod_app.setup.doctor import pick_device
from finrl_pod_app.setup.output_folder import ENSEMBLE, JsonRecord, locked_folder
from finrl_pod_app.training.walkforward import (
    FoldRun,
    fold_config,
    fold_context,
    open_plan,
    report_with_prefix,
    train_fold,
)

QUARTER = 63  # bars of validation and of trading, as in FinRL
RANDOM_SEEDS = 100
QUANTILES = (0.05, 0.5, 0.95)  # of the random choices
RESULT_FILE = "ensemble.json"
CURVES_FILE = "curves.csv"
QUARTERLY = "quarterly"
MEAN = "mean"


@dataclass(frozen=True)
class EnsembleOptions:
    """algorithms: names. quarters: number of traded quarters, None for all up to the end of the test split. samples:
    environment steps of each training.
    """

    algorithms: tuple[str, ...]
    quarters: int | None = None
    samples: int = 20_000

    def check(self) -> None:
        """Raise InputError for fewer than two algorithms, a repeated one, and no samples or quarters.

        Raises ConfigError for an unknown algorithm.
        """
        names = self.algorithms
        for name in names:
            algorithm_info(name)
        if len(names) < 2 or len(set(names)) < len(names):
            raise InputError(
                f"--algorithms takes at least two different names such as ppo,a2c, got {','.join(names):.80}"
            )
        for option, value in (("--quarters", self.quarters), ("--samples", self.samples)):
            if value is not None and value < 1:
                raise InputError(f"{option} must be at least 1, got {value}")


@dataclass(frozen=True)
class Quarter:
    """A traded quarter. train_end to end: dates. validation: Sharpe ratio of each algorithm on the quarter before,
    None if it is undefined. chosen: the algorithm with the highest.
    """

    quarter: int
    train_end: str
    validation_start: str
    validation_end: str
    start: str
    end: str
    validation: Mapping[str, float | None]
    chosen: str


@dataclass(frozen=True)
class RandomChoices:
    """Sharpe ratios of accounts that trade an algorithm drawn at random for each quarter: quantiles over the seeds.

    share_below: share of the seeds with a lower Sharpe ratio than the quarterly ensemble.
    """

    seeds: int
    low: float
    median: float
    high: float
    share_below: float


@dataclass(frozen=True)
class QuarterlyEnsemble(JsonRecord):
    """Contents of ensemble.json. results: metrics by strategy, and the random choices under "random".

    sharpe_error: standard error of an annual Sharpe ratio near 0 over a quarter. look, looks_so_far: None if no test
    bar was traded.
    """

    algorithms: tuple[str, ...]
    samples: int
    quarters: tuple[Quarter, ...]
    results: Mapping[str, Mapping[str, float] | RandomChoices]
    sharpe_error: float
    look: int | None
    looks_so_far: int | None


class TrainedQuarter(NamedTuple):
    """A quarter with the run of each algorithm."""

    fold: Fold
    runs: Mapping[str, FoldRun]

    @property
    def validation(self) -> dict[str, float]:
        """Sharpe ratio of each algorithm on the quarter of validation."""
        return {name: run.board.scores[0].score for name, run in self.runs.items()}

    def strategy(self, *names: str) -> PolicyStrategy:
        """The mean of the agents of these algorithms, with an account that has no past."""
        runs = [self.runs[name] for name in names]
        snapshots = [run.run.snapshot(run.board.scores[0].id) for run in runs]
        return PolicyStrategy(snapshots, feature_tables=runs[0].run.tables)

    @property
    def chosen(self) -> str:
        """The algorithm with the highest Sharpe ratio; an undefined one loses."""
        ratios = self.validation
        return max(sorted(ratios), key=lambda name: -math.inf if math.isnan(ratios[name]) else ratios[name])


def run_ensemble(
    config: RunConfig,
    out: Path,
    options: EnsembleOptions,
    *,
    resume: bool = False,
    device: str = "auto",
    progress: ProgressCallback = lambda _: None,
) -> QuarterlyEnsemble:
    """Train every algorithm for every quarter, trade, and write ensemble.json and curves.csv.

    The first quarter begins with the validation split. Each training ends before the quarter on which the algorithms
    are compared, and this quarter ends before the traded one, an embargo apart; the account is carried over. Raises
    InputError for bad options, DataError for too few bars, Interrupted on Ctrl-C.
    """
    options.check()
    registry = TrialRegistry()
    registry.check_writable()
    if resume:
        config = RunDirectory(_run_folder(out, 1, options.algorithms[0])).with_tables(config)
    config = pinned(with_stored_splits(config))
    panel = load_panel(config)
    configs = {name: algorithm_config(config, name, options.samples) for name in options.algorithms}
    folds = quarter_folds(config, panel, options.quarters)
    torch_device = pick_device(device)
    plan: dict[str, int | Sequence[str]] = {
        "algorithms": options.algorithms,
        "quarters": len(folds),
        "samples": options.samples,
    }
    try:
        with locked_folder(out, ENSEMBLE):
            open_plan(out, ENSEMBLE, config, panel, plan, resume=resume)
            quarters = []
            for fold in folds:
                runs = {}
                for name, run_config in configs.items():
                    callback = partial(report_with_prefix, progress, f"quarter {fold.number} of {len(folds)}, {name}")
                    context = fold_context(fold_config(run_config, panel, fold, config.seed), panel)
                    folder = _run_folder(out, fold.number, name)
                    runs[name] = train_fold(context, fold, folder, registry, torch_device, callback)
                quarters.append(TrainedQuarter(fold, runs))
            progress(Progress("trading the quarters", 0, 0, 0.0, None, None))
            return _trade(config, panel, quarters, options, out)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; finished trainings are kept in {out}. Resume with --resume --out {shlex.quote(str(out))}"
        ) from None


def _run_folder(out: Path, quarter: int, algorithm: str) -> Path:
    return out / f"quarter-{quarter:02d}" / re.sub(r"[^\w.-]+", "-", unpinned(algorithm))


def algorithm_config(config: RunConfig, name: str, samples: int) -> RunConfig:
    """The config of the runs of one algorithm: one agent that starts from new weights, as in FinRL.

    Settings of the algorithm come from the config, or are its defaults. Raises ConfigError for an algorithm that
    does not train on the environment of the config.
    """
    agents = [agent for agent in (config.agent, *config.cohorts) if agent.algorithm == name]
    agent = dataclasses.asdict(agents[0]) if agents else {"algorithm": name}
    single = dataclasses.replace(
        config.tournament,
        pods=1,
        generations=1,
        samples_per_generation=samples,
        leaderboard=1,
        champion=1,
        selection="best",
        exploit_fraction=0.0,
        reinit_fraction=0.0,
    )
    values = {**dataclasses.asdict(config), "agent": agent, "cohorts": (), "tournament": dataclasses.asdict(single)}
    run_config = parse(values, f"the config of {name}")
    if isinstance(run_config.agent, TrainedAgentConfig):
        run_config = dataclasses.replace(run_config, agent=dataclasses.replace(run_config.agent, start="new"))
    return with_effective_settings(run_config)[0]


def quarter_folds(config: RunConfig, panel: Panel, quarters: int | None) -> tuple[Fold, ...]:
    """Traded quarters from the start of the validation split, each with the quarter before it and the bars before.

    Raises InputError for intraday bars and for more quarters than the bars up to the end of the test split have.
    """
    if panel.bar != "1d":
        raise InputError(f"a quarter has {QUARTER} daily bars, but {panel.name} has bars of {panel.bar}")
    splits = make_splits(panel.times, config.splits)
    start = splits.validation.first
    available = (splits.test.last - start + 1) // QUARTER
    count = available if quarters is None else quarters
    if not 1 <= count <= available:
        dates = " to ".join(stamp(panel.times[bar], panel.bar) for bar in (start, splits.test.last))
        raise InputError(
            f"validation and test, {dates}, have {available} quarters of {QUARTER} bars, got --quarters {count}"
        )
    last = start + QUARTER * count - 1
    return walk_forward_folds(splits.train.first, start, last, count, QUARTER, config.splits.embargo)


def _trade(
    config: RunConfig, panel: Panel, quarters: Sequence[TrainedQuarter], options: EnsembleOptions, out: Path
) -> QuarterlyEnsemble:
    """Trade the quarters by each rule on an account of its own, and write the results."""
    names = options.algorithms
    features = quarters[0].strategy(names[0]).feature_names
    market = build_market(panel, features, (0, len(panel.times) - 1), config.environment.fill)
    span = Span(quarters[0].fold.test.first, quarters[-1].fold.test.last)
    period = period_of(market, span, config)
    accounts = _Accounts(panel, period, quarters)
    choices = [(quarter.chosen,) for quarter in quarters]
    look = _look(panel, config, quarters, span)
    reference = reference_strategy(config)
    curves = {
        QUARTERLY: accounts.result(choices),
        MEAN: accounts.result([names] * len(quarters)),
        **{name: accounts.result([(name,)] * len(quarters)) for name in names},
        reference.name: backtest(reference, panel, period),
    }
    ratios = []
    for seed in range(RANDOM_SEEDS):
        picks = np.random.default_rng([config.seed, seed]).integers(0, len(names), len(quarters))
        ratios.append(accounts.result([(names[pick],) for pick in picks]).metrics["sharpe"])
    low, median, high = np.nanquantile(ratios, QUANTILES)
    share_below = float(np.mean(np.array(ratios) < curves[QUARTERLY].metrics["sharpe"]))
    results: dict[str, Mapping[str, float] | RandomChoices] = {name: curve.metrics for name, curve in curves.items()}
    results["random"] = RandomChoices(RANDOM_SEEDS, float(low), float(median), float(high), share_below)
    document = QuarterlyEnsemble(
        names,
        options.samples,
        tuple(_quarter(panel, quarter) for quarter in quarters),
        results,
        math.sqrt(BARS_PER_YEAR / QUARTER),
        None if look is None else look.number,
        None if look is None else look.so_far,
    )
    write_json(out / RESULT_FILE, document.to_dict(), indent=2)
    index = pd.Index([stamp(time, panel.bar) for time in curves[QUARTERLY].times], name="time")
    equity = pd.DataFrame({name: curve.equity for name, curve in curves.items()}, index)
    write_text(out / CURVES_FILE, equity.to_csv(float_format="%.2f"))
    return document


class _Accounts:
    """Backtests of accounts that trade all quarters, each begun with cash."""

    def __init__(self, panel: Panel, period: MarketPeriod, quarters: Sequence[TrainedQuarter]) -> None:
        self._panel = panel
        self._period = period
        self._quarters = quarters
        self._results: dict[tuple[tuple[str, ...], ...], BacktestResult] = {}  # seeds often draw the same choices

    def result(self, choices: Sequence[tuple[str, ...]]) -> BacktestResult:
        """The account that trades the mean of these algorithms in each quarter."""
        key = tuple(choices)
        if key not in self._results:
            schedule = [
                (self._panel.times[quarter.fold.test.first], quarter.strategy(*names))
                for quarter, names in zip(self._quarters, choices, strict=True)
            ]
            self._results[key] = backtest(ScheduledStrategy(schedule), self._panel, self._period)
        return self._results[key]


def _look(panel: Panel, config: RunConfig, quarters: Sequence[TrainedQuarter], span: Span) -> LookCount | None:
    """Count a look if test bars are traded."""
    if span.last < make_splits(panel.times, config.splits).test.first:
        return None
    digest = hashlib.sha256(config.sha256.encode())
    for quarter in quarters:
        for name in quarter.runs:
            digest.update(strategy_identity(quarter.strategy(name)).encode())
    return log_look(panel, span, digest.hexdigest(), f"quarterly ensemble of {', '.join(quarters[0].runs)}")


def _quarter(panel: Panel, quarter: TrainedQuarter) -> Quarter:
    fold = quarter.fold
    train, validation, test = (span_dates(panel, span) for span in (fold.train, fold.validation, fold.test))
    ratios = {name: None if math.isnan(ratio) else ratio for name, ratio in quarter.validation.items()}
    return Quarter(fold.number, train[1], *validation, *test, to_plain(ratios), quarter.chosen)
