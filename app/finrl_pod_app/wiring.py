"""From a config to a report: what `finrl-pod demo`, `tournament`, `train` and `backtest` do, as functions."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from finrl_pod_envs.make import make_env
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_strategies.baselines import make, run_baseline
from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod.config import RunConfig
from finrl_pod.data.panel import select
from finrl_pod.data.splits import Splits, make_splits
from finrl_pod.data.store import Store
from finrl_pod.data.tensor import build_market, to_device
from finrl_pod.errors import DataError, EnvironmentLacks, InputError, Interrupted
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.metrics import to_json
from finrl_pod.evaluate.registry import Registry
from finrl_pod.market.rules import rules_of
from finrl_pod.pod.champion import ChampionMembers, choose
from finrl_pod.pod.leaderboard import Leaderboard, ancestry
from finrl_pod.pod.progress import Progress
from finrl_pod.pod.run_directory import RunDirectory
from finrl_pod.pod.settings import check as check_tournament
from finrl_pod.pod.tournament import Outcome, Tournament
from finrl_pod.rl.learner import check as check_agent
from finrl_pod.types import MarketTensor, Panel
from finrl_pod_app.crowning import Crowned, Ground, crown
from finrl_pod_app.crowning import check as check_verdict
from finrl_pod_app.doctor import installed_versions
from finrl_pod_app.period import backtest_period
from finrl_pod_app.report import build_document, write_report
from finrl_pod_app.report.document import Champion, Timing
from finrl_pod_app.trial_log import TrialLog

Report = Callable[[Progress], None]
YARDSTICKS = ("equal_weight", "index")  # what a single backtest is shown beside


def run_tournament(
    config: RunConfig, out: Path, *, resume: bool = False, device: str = "auto", progress: Report = lambda _: None
) -> dict[str, Any]:
    """Train a population, pick the champion on validation, test it once, and write report.json and report.html.

    Returns the object of report.json. Raises Interrupted when the user stopped it: what was reached is on disk.
    """
    began = time.perf_counter()
    stage = _stages(progress)
    stage("reading prices and features")
    chosen = pick_device(device)
    panel = load_panel(config)
    splits = make_splits(panel.times, config.splits)
    check_verdict(config, splits)
    market = make_market(panel, config, splits)
    check_settings(config, market, splits)
    opener = RunDirectory.resume if resume else RunDirectory.create
    run = opener(out, config, panel.sha256)
    ground = Ground(config, panel, splits, market, training_env(config, market, splits, (0,)).last)
    try:
        outcome, members, crowned = compete(ground, run, Registry(), chosen, progress)
        stage("writing the report", outcome)
        document = build_document(
            config=config,
            panel=panel,
            splits=splits.dates(),
            results=crowned.test,
            versions=installed_versions(),
            champion=_described(config, members, outcome),
            leaderboard=outcome.leaderboard.scores,
            verdict=crowned.judged,
            timing=_timing(outcome, time.perf_counter() - began),
        )
        strategies = {name: to_json(result.metrics) for name, result in crowned.validation.items()}
        document["validation"] = {"strategies": strategies}
        write_report(out, document, crowned.test)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted: the generations that were finished are kept in {out}; go on with --resume --out {out}"
        ) from None
    return document


def compete(
    ground: Ground,
    run: RunDirectory,
    registry: Registry,
    device: torch.device,
    progress: Report = lambda _: None,
) -> tuple[Outcome, ChampionMembers, Crowned]:
    """Train a population, every trial counted in the register, and judge its champion."""
    config, splits, stage = ground.config, ground.splits, _stages(progress)
    log = TrialLog(registry, run, config, ground.panel, ground.market, splits)
    moved = to_device(ground.market, device)
    tournament = Tournament(
        config,
        moved,
        lambda members: training_env(config, moved, splits, members),
        (splits.validation.first, splits.validation.last),
        run,
        ground.panel.sha256,
        progress,
        log,
    )
    outcome = tournament.run()
    members = choose(outcome.leaderboard, config.tournament)
    return outcome, members, crown(ground, run, members, registry, log, lambda name: stage(name, outcome))


def run_backtest(
    target: str | Path,
    *,
    data: str | None = None,
    start: str | None = None,
    end: str | None = None,
    cost_bps: float | None = None,
    cash: float | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Backtest a run's champion (a Path) or a baseline (its name), beside equal weight and the index.

    Without dates: a run's own test split; for a baseline the test split of the default config on the sample, else
    all bars. Returns the report's object; writes it with its page when `out` is given.
    """
    run = RunDirectory.open(target) if isinstance(target, Path) else None
    if run is None:
        make(str(target))  # a name that nothing has is found before prices are read
    config = _with_terms(run.config if run else RunConfig(), data, cost_bps, cash)
    panel = load_panel(config)
    if run and data is None and panel.sha256 != run.data_sha256:
        raise DataError(f"data set {panel.name!r} has changed since the run in {run.path}; name the data with --data")
    first, last = backtest_period(panel, start, end, config.splits if data is None else None)
    if run is None:
        market = build_market(panel, (), (first, last), config.environment.fill)
        names = dict.fromkeys((str(target), *YARDSTICKS))
    else:
        champion = load_champion(run, saved_members(run))
        market = _market_of(champion, panel, config)
        names = dict.fromkeys(YARDSTICKS)
    terms = (first, last, rules_of(config.environment), config.environment.cash)
    results = {} if run is None else {"champion": backtest(champion, panel, market, *terms)}
    for name in names:
        if name != "index" or panel.benchmark is not None or name == str(target):
            results[name] = run_baseline(name, panel, market, *terms)
    dates = [str(panel.times[i].astype("datetime64[D]")) for i in (first, last)]
    document = build_document(
        config=config, panel=panel, splits={"test": dates}, results=results, versions=installed_versions()
    )
    if out is not None:
        write_report(out, document, results)
    return document


# ---------------------------------------------------------------------- the pieces


def load_panel(config: RunConfig) -> Panel:
    """The config's panel, with its choice of symbols."""
    return select(Store().load(config.data.name), config.data.symbols)


def make_market(panel: Panel, config: RunConfig, splits: Splits) -> MarketTensor:
    """Features normalised on the training split alone."""
    environment = config.environment
    return build_market(
        panel,
        config.features.names,
        (splits.train.first, splits.train.last),
        environment.fill,
        turbulence=environment.turbulence_limit > 0,
    )


def training_env(config: RunConfig, market: MarketTensor, splits: Splits, members: Sequence[int]) -> MarketEnv:
    """Environments whose last decision fills and is rewarded inside the training split: two bars before its end."""
    window = {"first": splits.train.first, "last": splits.train.last - 2}
    return make_env(market, config.environment, members=members, **window)


def check_settings(config: RunConfig, market: MarketTensor, splits: Splits) -> None:
    """Raises ConfigError for a setting that a tournament would stumble over, before anything is written."""
    check_tournament(config.tournament)
    check_agent(config.agent, training_env(config, market, splits, (0,)))


def load_champion(run: RunDirectory, members: ChampionMembers) -> PolicyStrategy:
    """The ensemble as a strategy."""
    return PolicyStrategy([run.snapshot(agent) for agent in members.ids], members.shares)


def pick_device(name: str) -> torch.device:
    """auto, cpu or cuda. Raises EnvironmentLacks for a CUDA device that is not there."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise EnvironmentLacks(
            "device cuda was asked for but this machine has none that torch can use; use --device cpu"
        )
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _market_of(champion: PolicyStrategy, panel: Panel, config: RunConfig) -> MarketTensor:
    """A market with the raw features that the champion asks for; its own normaliser does the rest."""
    champion.check_universe(panel.symbols)
    names = champion.feature_names
    return build_market(panel, names, (0, len(panel.times) - 1), config.environment.fill)


def _described(config: RunConfig, members: ChampionMembers, outcome: Outcome) -> Champion:
    return Champion(
        id="+".join(members.ids),
        algorithm=config.agent.algorithm,
        members=members.ids,
        lineage={agent: ancestry(agent, outcome.parents) for agent in members.ids},
    )


def saved_members(run: RunDirectory) -> ChampionMembers:
    """The champion of a run as it stands on disk."""
    state = run.state()
    settings = run.config.tournament
    rows: Sequence[Mapping[str, Any]] = state["leaderboard"] if state else []
    if not rows:
        raise InputError(f"the run in {run.path} has no agent on its leaderboard yet; let it finish a generation")
    return choose(Leaderboard.from_plain(settings.leaderboard, rows), settings)


def _timing(outcome: Outcome, total: float) -> Timing:
    rate = outcome.samples / max(outcome.train_seconds, 1e-9)
    return Timing(outcome.samples, outcome.train_seconds, rate, total)


def _with_terms(config: RunConfig, data: str | None, cost_bps: float | None, cash: float | None) -> RunConfig:
    """The config under other terms, where they are given."""
    if cost_bps is not None and not 0 <= cost_bps < 10_000:
        raise InputError(f"--cost-bps must be at least 0 and below 10000, got {cost_bps:g}")
    if cash is not None and not cash > 0:
        raise InputError(f"--cash must be above zero, got {cash:g}")
    environment = dataclasses.replace(
        config.environment,
        cost_bps=config.environment.cost_bps if cost_bps is None else cost_bps,
        cash=config.environment.cash if cash is None else cash,
    )
    chosen = config.data if data is None else dataclasses.replace(config.data, name=data, symbols=())
    return dataclasses.replace(config, environment=environment, data=chosen)


def _stages(progress: Report) -> Callable[..., None]:
    """A function that reports a stage other than training, with what is known so far."""

    def stage(name: str, outcome: Outcome | None = None) -> None:
        best = outcome.leaderboard.best if outcome else None
        samples = outcome.samples if outcome else 0
        rate = samples / max(outcome.train_seconds, 1e-9) if outcome else 0.0
        progress(Progress(name, samples, samples, rate, None if best is None else best.score, None))

    return stage
