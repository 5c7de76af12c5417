"""Run the audit's checks on a champion of a run or on any pipeline."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import make_env
from finrl_pod_strategies.base_portfolios import with_base
from finrl_pod_strategies.baselines import make_baseline
from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod import opened_files
from finrl_pod.data.splits import Splits, make_splits
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.audit.data_quality import check_data
from finrl_pod.evaluate.audit.determinism import BARS, MEMBER_BARS, check_determinism
from finrl_pod.evaluate.audit.external_data import opened_file_findings, unseen_reader_findings
from finrl_pod.evaluate.audit.fills import check_fills
from finrl_pod.evaluate.audit.leakage import check_normaliser, check_selection, check_splits
from finrl_pod.evaluate.audit.lookahead import CHECK as CHECK_LOOKAHEAD
from finrl_pod.evaluate.audit.lookahead import PROBES, check_lookahead
from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline, PreparationError, clean, fresh_copy
from finrl_pod.evaluate.audit.sensitivity import Sensitivity, sensitivity, sensitivity_findings
from finrl_pod.evaluate.audit.warmup import WARM_UP, check_warm_up
from finrl_pod.evaluate.metrics import bars_per_year
from finrl_pod.evaluate.variations import backtest_recorded
from finrl_pod.files import to_plain
from finrl_pod.market.rules import rules_of
from finrl_pod.memory import release_freed_memory, release_mapped_pages
from finrl_pod.promotion.rules import REFERENCE
from finrl_pod.protocols import Strategy
from finrl_pod.rl.acting.member_accounts import metrics_of
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig, RunConfig
from finrl_pod.tournament.leaderboard import Leaderboard
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.selection import ChampionMembers, champion_of, sharpe_ratios
from finrl_pod.types import AgentSnapshot, MarketTensor, Normaliser, Panel
from finrl_pod.user_files import forget_modules, is_file_reference, kept_files, kept_neighbours
from finrl_pod_app.evaluation.champions import member_ledgers
from finrl_pod_app.evaluation.trial_log import reference_strategy

ENVIRONMENTS, GROUP = 8, 4  # of an audited environment

OnStep = Callable[[str], None]  # called with the name of each check before it runs


@dataclass(frozen=True)
class Audit:
    """Findings about one subject. sensitivity: None without a strategy, or if costs were not checked."""

    subject: str
    findings: tuple[Finding, ...]
    sensitivity: Sensitivity | None = None

    @property
    def clean(self) -> bool:
        """Whether no finding is a failure."""
        return clean(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The audit as plain JSON values, infinite numbers as null."""
        return {
            "subject": self.subject,
            "clean": self.clean,
            "findings": [to_plain(dataclasses.asdict(finding)) for finding in self.findings],
            "sensitivity": None if self.sensitivity is None else to_plain(dataclasses.asdict(self.sensitivity)),
        }


def audit_champion(
    run: RunDirectory,
    panel: Panel,
    config: RunConfig,
    members: ChampionMembers,
    last_decision: int,
    *,
    costs: bool = True,
    probes: int = PROBES,
    warm_up_bars: int = WARM_UP,
    every_bar: bool = False,
    on_step: OnStep = lambda _: None,
) -> Audit:
    """Audit the champion of a run, from its prices to its decisions.

    last_decision: last bar at which its training environments decide. costs: also check other costs and delays on the
    validation bars, against the reference of the gate, which can lead to warnings but not to failures.
    """
    begin = opened_files.number()
    opened_files.watch()
    splits = make_splits(panel.times, config.splits)
    snapshots = {agent: run.snapshot(agent) for agent in members.ids}
    champion = PolicyStrategy(list(snapshots.values()), members.ensemble_weights, rule=members.rule)
    strategies = {"champion": champion}
    if len(snapshots) > 1:
        strategies |= {agent: PolicyStrategy([snapshot], name=agent) for agent, snapshot in snapshots.items()}
    pipeline = Pipeline(
        name="champion",
        panel=panel,
        build=market_builder(config, _champion_normaliser(champion)),
        rules=rules_of(config.environment),
        cash=config.environment.cash,
        out_of_sample=splits.train.last + 1,
        strategies=strategies,
        make_env=audit_env_factory(config.environment, config.mandate),
        restart=forget_modules if any(map(is_file_reference, champion.feature_names)) else None,
    )
    on_step("leakage")
    market = market_builder(config, champion.normaliser)(panel)
    found = check_normaliser(market, champion.normaliser, (splits.train.first, splits.train.last))
    release_mapped_pages()
    found = [
        *found,
        *check_splits(splits, last_decision),
        *_check_selection(run, config, market, splits, members),
    ]
    del market  # the checks build their own, one at a time
    span = (splits.validation.first, splits.validation.last) if costs else None
    terms = (config.environment.cost_bps, probes, warm_up_bars, on_step)
    reference = reference_strategy(config)
    rest, sensitivities = run_checks(pipeline, span, *terms, reference, "validation", every_bar=every_bar)
    findings = (*found, *rest, *_opened_by_parts(config, begin))
    return Audit(f"champion of {run.path}", findings, sensitivities)


def _opened_by_parts(config: RunConfig, begin: int) -> list[Finding]:
    """Warnings of files opened by features, rewards, costs, policies and other parts of a run.

    begin: number of the start of its audit. Before it, the process may have imported and called the run's own files and
    parts of packages, and other runs' files too, which do not count.
    """
    settings = dataclasses.asdict(config)
    names = kept_files(settings)
    before = [
        entry
        for entry in opened_files.opened_files()
        if Path(entry.reader).name in names or entry.module.partition(".")[0] in opened_files.IMPORTED_PACKAGES
    ]
    findings = opened_file_findings(dict.fromkeys((*before, *opened_files.opened_files(begin))))
    return findings + unseen_reader_findings(names | kept_neighbours(settings))


def run_checks(
    pipeline: Pipeline,
    span: tuple[int, int] | None,
    cost: float,
    probes: int,
    warm_up_bars: int,
    on_step: OnStep,
    reference: Strategy | None = None,
    bars: str = "",
    *,
    every_bar: bool = False,
) -> tuple[list[Finding], Sensitivity | None]:
    """Run the checks that apply to every pipeline.

    span: bars on which a strategy's costs and delays are varied. reference: what its growth is compared with; default:
    equal weight. bars: name of those of the span in messages. every_bar: probe features at every bar for look-ahead.
    """
    if probes < 1 or warm_up_bars < 1:
        raise InputError(
            f"an audit needs at least 1 probe and 1 bar of warm-up, got {probes} probes and {warm_up_bars} bars"
        )
    found: list[Finding] = []

    def run(name: str, check: Callable[[], list[Finding]]) -> None:
        on_step(name)
        release_freed_memory()
        try:
            found.extend(check())
        except PreparationError as error:  # the other checks compare bars and tickers
            found.append(Finding(CHECK_LOOKAHEAD, "fail", "the preparation of prices", f"{error}."))

    run("determinism", lambda: check_determinism(pipeline, max(MEMBER_BARS, min(BARS, 4 * probes))))
    # What is not deterministic would fail the other comparisons too: report that once.
    ignored = {finding.part for finding in found if finding.status == "fail"}
    deterministic = dataclasses.replace(
        pipeline,
        strategies={
            name: strategy
            for name, strategy in pipeline.strategies.items()
            if not {f"strategy {name}", *(f"feature {used}" for used in strategy.feature_names)} & ignored
        },
    )
    run("look-ahead", lambda: check_lookahead(deterministic, probes, every_bar=every_bar, ignored=ignored))
    run("warm-up", lambda: check_warm_up(deterministic, warm_up_bars, ignored=ignored))
    run("fills", lambda: check_fills(pipeline))
    run("data", lambda: check_data(pipeline.panel))
    broken = any(finding.part == "the preparation of prices" for finding in found)
    if span is None or not pipeline.strategies or broken:
        return list(dict.fromkeys(found)), None
    on_step("sensitivity to costs and delays")
    reference = reference or make_baseline(REFERENCE)
    varied = cost_sensitivity(pipeline, reference, span)
    return [*found, *sensitivity_findings(pipeline, varied, reference.name, cost, span, bars)], varied


def cost_sensitivity(pipeline: Pipeline, reference: Strategy, span: tuple[int, int]) -> Sensitivity:
    """Sensitivity of a pipeline's first strategy, compared with a reference."""
    panel = pipeline.prepared(pipeline.panel)
    market = pipeline.build(panel)
    terms = (panel, market, *span, pipeline.rules, pipeline.cash)
    strategy = fresh_copy(next(iter(pipeline.strategies.values())))
    own, other = (backtest_recorded(tested, *terms)[1] for tested in (strategy, fresh_copy(reference)))
    return sensitivity(own.decisions, other.decisions, *terms[1:])


def market_builder(config: RunConfig, normaliser: Normaliser) -> Callable[[Panel], MarketTensor]:
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
    """A function that makes a few environments. Cash earns no interest in them, which would resemble a wrong fill."""
    config = dataclasses.replace(config, cash_rates=())

    def make_audit_env(market: MarketTensor, first: int, last: int) -> MarketEnv:
        return make_env(market, config, first=first, last=last, envs=ENVIRONMENTS, group=GROUP, mandate=mandate)

    return make_audit_env


def _check_selection(
    run: RunDirectory, config: RunConfig, market: MarketTensor, splits: Splits, members: ChampionMembers
) -> list[Finding]:
    """Score every agent of the leaderboard again on the validation bars."""
    state = run.state()
    board = Leaderboard.from_state(state, config.tournament)
    agents = [run.snapshot(score.id) for score in board.scores]
    recomputed = _validation_scores(agents, market, config, (splits.validation.first, splits.validation.last))
    returns = run.validation_returns({score.generation for score in board.scores})
    annual = math.sqrt(bars_per_year(market.times))
    recorded = {
        score.id: (score.score, annual * float(sharpe_ratios(returns[score.id][:, None])[0])) for score in board.scores
    }
    shares, selected = (
        dict(zip(each.ids, each.ensemble_weights, strict=True)) for each in (members, champion_of(run, config))
    )
    return check_selection(recorded, recomputed, shares, selected)


def _validation_scores(
    agents: Sequence[AgentSnapshot], market: MarketTensor, config: RunConfig, span: tuple[int, int]
) -> dict[str, float]:
    """id -> annual Sharpe ratio on the bars of `span`."""
    found: dict[str, float] = {}
    for members, ledger in member_ledgers(agents, market, config, *span):
        metrics = metrics_of(ledger, market)
        found |= {agents[i].id: values["sharpe"] for i, values in zip(members, metrics, strict=True)}
    return found


def _champion_normaliser(champion: PolicyStrategy) -> Normaliser:
    """The champion's normaliser, extended by an identity for features it uses besides its own (turbulence)."""
    own, extra = champion.normaliser, champion.feature_names[len(champion.normaliser.feature_names) :]
    if not extra:
        return own
    zeros, ones = (0.0,) * len(extra), (1.0,) * len(extra)
    return Normaliser(champion.feature_names, (*own.mean, *zeros), (*own.std, *ones), own.clip)
