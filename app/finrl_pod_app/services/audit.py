"""The checks of an audit in their order, and the audit of a champion."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import make_env
from finrl_pod_strategies.baselines import make
from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod.data.splits import Splits, make_splits
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.audit.determinism import determinism
from finrl_pod.evaluate.audit.fills import fills
from finrl_pod.evaluate.audit.flaws import flaws
from finrl_pod.evaluate.audit.leakage import chosen_on_validation, fitted, separated
from finrl_pod.evaluate.audit.lookahead import PROBES, lookahead
from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline, clean, fresh_copy
from finrl_pod.evaluate.audit.sensitivity import Sensitivity, sensitivity, sensitivity_findings
from finrl_pod.evaluate.audit.warmup import WARM_UP, warm_up
from finrl_pod.evaluate.variations import recorded
from finrl_pod.files import to_plain
from finrl_pod.market.rules import rules_of
from finrl_pod.settings.run import EnvironmentConfig, RunConfig
from finrl_pod.tournament.leaderboard import ChampionMembers, Leaderboard, choose
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.scoring import metrics_of
from finrl_pod.types import AgentSnapshot, MarketTensor, Normaliser, Panel
from finrl_pod_app.services.champions import member_ledgers

YARDSTICK = "equal_weight"
ENVIRONMENTS, GROUP = 8, 4

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Audit:
    """What an audit found. sensitivity: None where there is no strategy."""

    subject: str
    findings: tuple[Finding, ...]
    sensitivity: Sensitivity | None = None

    @property
    def clean(self) -> bool:
        """No finding is a failure."""
        return clean(self.findings)

    def plain(self) -> dict[str, Any]:
        """As JSON knows it: what is infinite is null."""
        return {
            "subject": self.subject,
            "clean": self.clean,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
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
    tell: Tell = lambda _: None,
) -> Audit:
    """The champion of a run, from its prices to its decisions.

    last_decision: last bar at which its training environments decide. costs: try other costs and delays, on the
    validation bars; they can raise doubts, not faults.
    """
    splits = make_splits(panel.times, config.splits)
    snapshots = {agent: run.snapshot(agent) for agent in members.ids}
    champion = PolicyStrategy(list(snapshots.values()), members.shares, rule=members.rule)
    strategies = {"champion": champion}
    if len(snapshots) > 1:
        strategies |= {agent: PolicyStrategy([one], name=agent) for agent, one in snapshots.items()}
    pipeline = Pipeline(
        name="champion",
        panel=panel,
        build=builder(config, _with_turbulence(champion)),
        rules=rules_of(config.environment),
        cash=config.environment.cash,
        settled=splits.train.last + 1,
        strategies=strategies,
        make_env=small_env(config.environment),
    )
    tell("leakage")
    market = builder(config, champion.normaliser)(panel)
    found = [
        *fitted(market, champion.normaliser, (splits.train.first, splits.train.last)),
        *separated(splits, last_decision),
        *_selection(run, config, market, splits, members),
    ]
    span = (splits.validation.first, splits.validation.last) if costs else None
    rest, sensed = examine(pipeline, span, config.environment.cost_bps, probes, warm_up_bars, tell)
    return Audit(f"champion of {run.path}", (*found, *rest), sensed)


def examine(
    pipeline: Pipeline,
    span: tuple[int, int] | None,
    cost: float,
    probes: int,
    warm_up_bars: int,
    tell: Tell,
    yardstick: str = YARDSTICK,
) -> tuple[list[Finding], Sensitivity | None]:
    """The checks that every subject goes through. span: bars on which a strategy's costs and delays are tried."""
    if probes < 1 or warm_up_bars < 1:
        raise InputError(f"an audit needs 1 probe and 1 bar of warm-up at least, got {probes} and {warm_up_bars}")
    tell("determinism")
    found = determinism(pipeline)
    # What is not the same twice moves whether or not the future changes: that is one fault, not three.
    fickle = {finding.part for finding in found if finding.status == "fail"}
    kept = {name: strategy for name, strategy in pipeline.strategies.items() if f"strategy {name}" not in fickle}
    steady = dataclasses.replace(pipeline, strategies=kept)
    steps: Sequence[tuple[str, Callable[[], list[Finding]]]] = (
        ("look-ahead", lambda: lookahead(steady, probes)),
        ("warm-up", lambda: warm_up(steady, warm_up_bars)),
        ("fills", lambda: fills(pipeline)),
        ("data", lambda: flaws(pipeline.panel)),
    )
    for name, check in steps:
        tell(name)
        found += check()
    if span is None or not pipeline.strategies:
        return found, None
    tell("costs and delays")
    sensed = sense(pipeline, span)
    return [*found, *sensitivity_findings(pipeline, sensed, yardstick, cost)], sensed


def sense(pipeline: Pipeline, span: tuple[int, int]) -> Sensitivity:
    """The first strategy of a pipeline beside equal weight, at other costs and delays."""
    panel = pipeline.prepare(pipeline.panel)
    market = pipeline.build(panel)
    terms = (panel, market, *span, pipeline.rules, pipeline.cash)
    whole = fresh_copy(next(iter(pipeline.strategies.values())))
    own, yardstick = (recorded(strategy, *terms)[1] for strategy in (whole, make(YARDSTICK)))
    return sensitivity(own.decisions, yardstick.decisions, *terms[1:])


def _selection(
    run: RunDirectory, config: RunConfig, market: MarketTensor, splits: Splits, members: ChampionMembers
) -> list[Finding]:
    """Everybody on the leaderboard is scored again on the validation bars."""
    state = run.state()
    board = Leaderboard.from_plain(config.tournament.leaderboard, state["leaderboard"] if state else [])
    agents = [run.snapshot(score.id) for score in board.scores]
    again = _scores(agents, market, config, (splits.validation.first, splits.validation.last))
    chosen = choose(board, config.tournament).ids
    found = chosen_on_validation({s.id: s.score for s in board.scores}, again, members.ids)
    if set(members.ids) != set(chosen):
        text = f"The champion holds {', '.join(members.ids)}, the leaderboard's best are {', '.join(chosen)}."
        found.append(Finding("leakage", "fail", "the champion's selection", text))
    return found


def _scores(
    agents: Sequence[AgentSnapshot], market: MarketTensor, config: RunConfig, span: tuple[int, int]
) -> dict[str, float]:
    """id -> Sharpe ratio a year on the bars of `span`."""
    found: dict[str, float] = {}
    for members, ledger in member_ledgers(agents, market, config.environment, *span):
        metrics = metrics_of(ledger, market)
        found |= {agents[i].id: values["sharpe"] for i, values in zip(members, metrics, strict=True)}
    return found


def builder(config: RunConfig, normaliser: Normaliser) -> Callable[[Panel], MarketTensor]:
    """Prices to a market, the normaliser frozen."""
    environment = config.environment

    def build(panel: Panel) -> MarketTensor:
        storm = environment.turbulence_limit > 0
        return build_market(panel, normaliser.feature_names, normaliser, environment.fill, turbulence=storm)

    return build


def small_env(config: EnvironmentConfig) -> Callable[[MarketTensor, int, int], MarketEnv]:
    """Environments by a config, a few of them. Cash earns nothing in them: a night's interest is no fill."""
    config = dataclasses.replace(config, cash_rates=())

    def made(market: MarketTensor, first: int, last: int) -> MarketEnv:
        return make_env(market, config, first=first, last=last, envs=ENVIRONMENTS, group=GROUP)

    return made


def _with_turbulence(champion: PolicyStrategy) -> Normaliser:
    """The champion's normaliser; turbulence, where it looks at it beside its features, is left as it is."""
    own, extra = champion.normaliser, champion.feature_names[len(champion.normaliser.feature_names) :]
    if not extra:
        return own
    zeros, ones = (0.0,) * len(extra), (1.0,) * len(extra)
    return Normaliser(champion.feature_names, (*own.mean, *zeros), (*own.std, *ones), own.clip)
