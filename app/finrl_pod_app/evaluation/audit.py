"""Audits: the checks of `finrl_pod.evaluate.audit` on the champion of a run, a strategy or an environment."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import KINDS, make_env
from finrl_pod_strategies.base_portfolios import with_base
from finrl_pod_strategies.baselines import index_panel, make_baseline
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.user_strategy import load_strategy, restartable_strategy

from finrl_pod import opened_files
from finrl_pod.data.splits import make_splits
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import ConfigError, DataError, InputError
from finrl_pod.evaluate.audit.data_checks import (
    check_data,
    growth_findings,
    opened_file_findings,
    unseen_reader_findings,
)
from finrl_pod.evaluate.audit.determinism import BARS, MEMBER_BARS, WARM_UP, check_determinism, check_warm_up
from finrl_pod.evaluate.audit.fills import check_fills
from finrl_pod.evaluate.audit.leakage import check_normaliser, check_selection, check_splits
from finrl_pod.evaluate.audit.lookahead import CHECK as CHECK_LOOKAHEAD
from finrl_pod.evaluate.audit.lookahead import PROBES, check_lookahead
from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline, PreparationError, clean, fresh_copy
from finrl_pod.evaluate.audit.sensitivity import Sensitivity, sensitivity, sensitivity_findings
from finrl_pod.evaluate.metrics import bars_per_year
from finrl_pod.evaluate.variations import backtest_recorded
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.market.rules import rules_of
from finrl_pod.memory import release_freed_memory, release_mapped_pages
from finrl_pod.promotion.gate import REFERENCE
from finrl_pod.protocols import Strategy
from finrl_pod.rl.acting import metrics_of
from finrl_pod.settings.run import DataConfig, EnvironmentConfig, MandateConfig, RunConfig
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.selection import ChampionMembers, champion_of, sharpe_ratios
from finrl_pod.types import MarketTensor, Normaliser, Panel
from finrl_pod.user_files import (
    custom_parts,
    custom_source,
    forget_modules,
    is_custom,
    kept_files,
    kept_neighbours,
    unpinned,
)
from finrl_pod_app.evaluation.champions import member_curves, reference_strategy
from finrl_pod_app.prices.market_setup import make_market, training_env
from finrl_pod_app.prices.stored_prices import load_panel, load_run_panel, splits_of_panel, with_stored_splits
from finrl_pod_app.setup.output_folder import JsonRecord

ENVIRONMENTS, GROUP = 8, 4  # of an audited environment
MIN_BARS = 60  # shorter panels leave no bar to probe
PREPARATION = "the preparation of prices"  # subject of a finding that ends the checks of bars and tickers

OnStep = Callable[[str], None]  # called with the name of each check before it runs
BarRange = tuple[int, int]  # first and last bar


@dataclass(frozen=True)
class AuditScope:
    """How much an audit checks.

    probes: random bars after which later prices are changed. warm_up_bars: bars of history that decisions may depend
    on. deployed: these are the bars that the daemon reads. Raises InputError for fewer than one probe or bar.
    """

    probes: int = PROBES
    warm_up_bars: int = WARM_UP
    deployed: bool = False

    def __post_init__(self) -> None:
        if self.probes < 1 or self.warm_up_bars < 1:
            raise InputError(
                f"an audit needs at least 1 probe and 1 bar of warm-up, got {self.probes} probes and "
                f"{self.warm_up_bars} bars"
            )


FULL_SCOPE = AuditScope()


@dataclass(frozen=True)
class CostSensitivity:
    """What costs and delays are varied on: the bars, their name in messages, and the strategy to compare with."""

    bars: BarRange
    reference: Strategy
    split: str = ""


@dataclass(frozen=True)
class Audit(JsonRecord):
    """Findings about one subject. sensitivity: None without a strategy, or if costs were not checked."""

    subject: str
    findings: tuple[Finding, ...]
    sensitivity: Sensitivity | None = None

    @property
    def clean(self) -> bool:
        """True if no finding is a failure."""
        return clean(self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {"subject": self.subject, "clean": self.clean, **super().to_dict()}


# ---------------------------------------------------------------------- runs


def audit_run(path: Path, scope: AuditScope = FULL_SCOPE, *, on_step: OnStep = lambda _: None) -> Audit:
    """Audit the champion of a run.

    Raises RunError for a folder without a finished generation, DataError if its prices are no longer stored.
    """
    run = RunDirectory.open(path)
    config = run.config
    panel = load_run_panel(config, run.data_sha256, path)
    splits = make_splits(panel.times, config.splits)
    market = make_market(panel, config, splits)
    last_decision = training_env(config, market, splits, (0,)).last
    return audit_champion(run, panel, config, champion_of(run, config), market, last_decision, scope, on_step=on_step)


def audit_champion(
    run: RunDirectory,
    panel: Panel,
    config: RunConfig,
    members: ChampionMembers,
    market: MarketTensor,
    last_decision: int,
    scope: AuditScope = FULL_SCOPE,
    *,
    costs: bool = True,
    on_step: OnStep = lambda _: None,
) -> Audit:
    """Audit the champion of a run, from its prices to its decisions.

    market: what the agents were trained on. last_decision: last bar at which the training environments decide. costs:
    also check other costs and delays on the validation bars, against the reference of the gate. They can lead to
    warnings but not to failures.
    """
    first_record = opened_files.number()
    opened_files.watch()
    splits = make_splits(panel.times, config.splits)
    validation = (splits.validation.first, splits.validation.last)
    snapshots = {agent: run.snapshot(agent) for agent in members.ids}
    champion = PolicyStrategy(list(snapshots.values()), members.ensemble_weights, rule=members.rule)
    strategies = {"champion": champion}
    if len(snapshots) > 1:
        strategies |= {agent: PolicyStrategy([snapshot], name=agent) for agent, snapshot in snapshots.items()}
    restart = forget_modules if kept_files(dataclasses.asdict(config)) else None
    is_trained_market = restart is None and market.normaliser == _champion_normaliser(champion)
    pipeline = Pipeline(
        name="champion",
        panel=panel,
        build=_market_builder(config, _champion_normaliser(champion)),
        rules=rules_of(config.environment),
        cash=config.environment.cash,
        out_of_sample=splits.train.last + 1,
        strategies=strategies,
        make_env=audit_env_factory(config.environment, config.mandate),
        restart=restart,
        trained=market if is_trained_market else None,
    )
    on_step("leakage")
    if not is_trained_market:
        market = _market_builder(config, champion.normaliser)(panel)
    normaliser_findings = check_normaliser(market, champion.normaliser, (splits.train.first, splits.train.last))
    release_mapped_pages()
    leakage_findings = [
        *normaliser_findings,
        *check_splits(splits, last_decision),
        *_check_selection(run, config, market, validation, members),
    ]
    del market  # the checks build their own, one at a time
    varied_costs = CostSensitivity(validation, reference_strategy(config), "validation") if costs else None
    findings, sensitivities = run_checks(pipeline, varied_costs, config.environment.cost_bps, scope, on_step)
    findings = [*leakage_findings, *findings, *_opened_by_run(config, first_record)]
    findings_as_written = (dataclasses.replace(x, part=unpinned(x.part), message=unpinned(x.message)) for x in findings)
    return Audit(f"champion of {run.path}", tuple(findings_as_written), sensitivities)


def _opened_by_run(config: RunConfig, first_record: int) -> list[Finding]:
    """Warnings of files opened by features, rewards, costs, policies and other custom code of a run.

    first_record: number of the first file opened by the audit. Files of the run may have been imported and called
    before, and so may files of other runs. Those do not count.
    """
    settings = dataclasses.asdict(config)
    parts = custom_parts(settings)
    names = kept_files(settings)
    earlier_files = [
        entry
        for entry in opened_files.opened_files()
        if Path(entry.reader).name in names or entry.module.partition(".")[0] in opened_files.IMPORTED_PACKAGES
    ]
    findings = opened_file_findings(dict.fromkeys((*earlier_files, *opened_files.opened_files(first_record))), parts)
    return findings + unseen_reader_findings(names | kept_neighbours(settings), parts)


def _check_selection(
    run: RunDirectory, config: RunConfig, market: MarketTensor, validation: BarRange, members: ChampionMembers
) -> list[Finding]:
    """Score every agent of the leaderboard again on the validation bars."""
    board = run.leaderboard()
    returns = run.validation_returns({score.generation for score in board.scores})
    annual = math.sqrt(bars_per_year(market.times))
    recorded_scores = {
        score.id: (score.score, annual * float(sharpe_ratios(returns[score.id][:, None])[0])) for score in board.scores
    }
    shares, selected_shares = (
        dict(zip(ensemble.ids, ensemble.ensemble_weights, strict=True))
        for ensemble in (members, champion_of(run, config))
    )
    agents = [run.snapshot(score.id) for score in board.scores]
    scores: dict[str, float] = {}
    for indices, curves in member_curves(agents, market, config, *validation):
        metrics = metrics_of(curves, market)
        scores |= {agents[i].id: values["sharpe"] for i, values in zip(indices, metrics, strict=True)}
    return check_selection(recorded_scores, scores, shares, selected_shares)


def _champion_normaliser(champion: PolicyStrategy) -> Normaliser:
    """The normaliser of a champion, extended by an identity for features without statistics (turbulence)."""
    normaliser = champion.normaliser
    count = len(champion.feature_names) - len(normaliser.feature_names)
    if not count:
        return normaliser
    mean = (*normaliser.mean, *(0.0,) * count)
    std = (*normaliser.std, *(1.0,) * count)
    return Normaliser(champion.feature_names, mean, std, normaliser.clip)


# ---------------------------------------------------------------------- strategies and environments


def audit_strategy(
    target: str | Strategy,
    data: str | None = None,
    scope: AuditScope = FULL_SCOPE,
    *,
    config: RunConfig | None = None,
    on_step: OnStep = lambda _: None,
) -> Audit:
    """Audit a strategy: the name of a baseline, `file.py:Class`, or an object such as one of a notebook.

    data: stored panel. config: prices, rules and splits instead of `data` and the defaults. Costs are varied on
    validation bars: an audit is no look at the test period.
    """
    first_record = opened_files.number()
    opened_files.watch()
    strategy: Strategy
    restart = None
    if isinstance(target, str) and is_custom(target):
        strategy, restart = restartable_strategy(target)
    else:
        strategy = load_strategy(target) if isinstance(target, str) else target
    name = target if isinstance(target, str) else strategy.name
    config, panel, bars = _audit_data(config, data)
    if name == "index":
        panel = index_panel(panel)
    features = strategy.feature_names
    fill = config.environment.fill
    normaliser = build_market(panel, features, (0, bars[0] - 1), fill).normaliser if features else None
    pipeline = Pipeline(
        name=name,
        panel=panel,
        build=lambda prices: build_market(prices, features, normaliser or (0, len(prices.times) - 1), fill),
        rules=rules_of(config.environment),
        cash=config.environment.cash,
        out_of_sample=bars[0],
        strategies={name: strategy},
        restart=restart,
    )
    varied_costs = CostSensitivity(bars, strategy if name == "index" else make_baseline(REFERENCE))
    cost = config.environment.cost_bps
    findings, sensitivities = run_checks(pipeline, varied_costs, cost, scope, on_step)
    if sensitivities is not None:
        findings += growth_findings(name, sensitivities, cost)
    parts = custom_parts((name, *features))
    return Audit(name, (*findings, *_opened_by_strategy(target, first_record, parts)), sensitivities)


def _opened_by_strategy(target: str | Strategy, first_record: int, parts: set[str]) -> list[Finding]:
    """Warnings of files opened by user code since `first_record`, and by the file of the strategy on import."""
    records = opened_files.opened_files(first_record)
    if not isinstance(target, str) or not is_custom(target):
        return opened_file_findings(records, parts)
    path, text = custom_source(target, "an audit")
    import_records = [
        entry for entry in opened_files.opened_files() if os.path.abspath(entry.reader) == os.path.abspath(path)
    ]
    findings = opened_file_findings(dict.fromkeys((*import_records, *records)), parts)
    return findings + unseen_reader_findings({path.name: text}, parts)


def audit_env(
    kind: str, data: str | None = None, scope: AuditScope = FULL_SCOPE, *, on_step: OnStep = lambda _: None
) -> Audit:
    """Audit an environment and its features on a panel of the store, under the default rules."""
    if kind not in KINDS:
        raise InputError(f"--env must be one of {', '.join(KINDS)}, got {kind!r}")
    config, panel, bars = _audit_data(None, data)
    environment = dataclasses.replace(config.environment, kind=kind)  # type: ignore[arg-type]  # checked above
    config = dataclasses.replace(config, environment=environment, mandate=MandateConfig(base="none"))
    normaliser = build_market(panel, config.features.names, (0, bars[0] - 1), environment.fill).normaliser
    pipeline = Pipeline(
        name=kind,
        panel=panel,
        build=_market_builder(config, normaliser),
        rules=rules_of(environment),
        cash=environment.cash,
        out_of_sample=bars[0],
        make_env=audit_env_factory(environment),
    )
    findings, _ = run_checks(pipeline, None, environment.cost_bps, scope, on_step)
    return Audit(kind, tuple(findings))


def _audit_data(config: RunConfig | None, data: str | None) -> tuple[RunConfig, Panel, BarRange]:
    """The config, or the default one on the panel `data`; its panel, and the bars on which costs are varied.

    These are the validation split, or the second half of a panel that is too short for splits. Probes start at the
    first of these bars.
    """
    has_own_splits = config is not None or data is None
    if config is None:
        config = RunConfig() if data is None else RunConfig(data=DataConfig(data))
    else:
        config = with_stored_splits(config)
    panel = load_panel(config)
    if len(panel.times) < MIN_BARS:
        raise DataError(f"an audit needs at least {MIN_BARS} bars, panel {panel.name!r} has {len(panel.times)}")
    try:
        splits = config.splits if has_own_splits else splits_of_panel(panel)
        validation = make_splits(panel.times, splits).validation
    except (DataError, ConfigError):
        return config, panel, (len(panel.times) // 2, len(panel.times) - 1)
    return config, panel, (validation.first, validation.last)


# ---------------------------------------------------------------------- checks of every pipeline


def run_checks(
    pipeline: Pipeline, varied_costs: CostSensitivity | None, cost: float, scope: AuditScope, on_step: OnStep
) -> tuple[list[Finding], Sensitivity | None]:
    """Run the checks that apply to every pipeline. cost: proportional cost in basis points."""
    findings: list[Finding] = []

    def run(name: str, check: Callable[[], list[Finding]]) -> None:
        on_step(name)
        release_freed_memory()
        try:
            findings.extend(check())
        except PreparationError as error:  # the other checks compare bars and tickers
            findings.append(Finding(CHECK_LOOKAHEAD, "fail", PREPARATION, f"{error}."))

    run("determinism", lambda: check_determinism(pipeline, max(MEMBER_BARS, min(BARS, 4 * scope.probes))))
    # A strategy that is not deterministic would fail the other comparisons too: it is reported once.
    failed_parts = {finding.part for finding in findings if finding.status == "fail"}
    strategies = {
        name: strategy
        for name, strategy in pipeline.strategies.items()
        if not {f"strategy {name}", *(f"feature {feature}" for feature in strategy.feature_names)} & failed_parts
    }
    # The same pipeline if nothing failed: it keeps the market that it has built.
    deterministic = dataclasses.replace(pipeline, strategies=strategies) if failed_parts else pipeline
    run(
        "look-ahead",
        lambda: check_lookahead(deterministic, scope.probes, ignored_names=failed_parts),
    )
    run(
        "warm-up",
        lambda: check_warm_up(deterministic, scope.warm_up_bars, ignored_names=failed_parts, deployed=scope.deployed),
    )
    run("fills", lambda: check_fills(deterministic))
    run("data", lambda: check_data(pipeline.panel))
    is_broken = any(finding.part == PREPARATION for finding in findings)
    if varied_costs is None or not pipeline.strategies or is_broken:
        return list(dict.fromkeys(findings)), None
    on_step("sensitivity to costs and delays")
    reference = varied_costs.reference
    bars = varied_costs.bars
    panel, market = deterministic.whole
    period = MarketPeriod(market, *bars, pipeline.rules, pipeline.cash)
    strategy = fresh_copy(next(iter(pipeline.strategies.values())))
    _, recording = backtest_recorded(strategy, panel, period)
    _, reference_recording = backtest_recorded(fresh_copy(reference), panel, period)
    sensitivities = sensitivity(recording, reference_recording, period)
    cost_findings = sensitivity_findings(pipeline, sensitivities, reference.name, cost, bars, varied_costs.split)
    return [*findings, *cost_findings], sensitivities


def _market_builder(config: RunConfig, normaliser: Normaliser) -> Callable[[Panel], MarketTensor]:
    """A function from prices to a market with a frozen normaliser."""
    environment = config.environment

    def build(panel: Panel) -> MarketTensor:
        turbulence = environment.turbulence_limit > 0
        market = build_market(panel, normaliser.feature_names, normaliser, environment.fill, turbulence=turbulence)
        return with_base(market, panel, config.mandate)

    return build


def audit_env_factory(
    config: EnvironmentConfig, mandate: MandateConfig | None = None
) -> Callable[[MarketTensor, int, int], MarketEnv]:
    """A function that makes a few environments. Their cash earns no interest: it would resemble a wrong fill."""
    config = dataclasses.replace(config, cash_rates=())
    return lambda market, first, last: make_env(
        market, config, first=first, last=last, envs=ENVIRONMENTS, group=GROUP, mandate=mandate
    )
