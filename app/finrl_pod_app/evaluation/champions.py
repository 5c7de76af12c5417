"""Champions of runs, their reference, identity and trial log."""

from __future__ import annotations

import hashlib
import inspect
import json
import uuid
from collections.abc import Callable, Mapping, Sequence

from finrl_pod_envs.member_accounts import simulate_members
from finrl_pod_strategies.baselines import make_baseline
from finrl_pod_strategies.mandate_account import BasePortfolio
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.user_strategy import UserStrategy, strategy_hash

from finrl_pod.data.features import register
from finrl_pod.data.splits import Span, Splits
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import AccountCurves
from finrl_pod.files import to_plain
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.market.mandate import active_mandate, without_name_limits
from finrl_pod.market.rules import rules_of
from finrl_pod.promotion.gate import REFERENCE
from finrl_pod.promotion.trial_log import TrialLog
from finrl_pod.promotion.trial_registry import TrialRegistry
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.selection import ChampionMembers
from finrl_pod.types import AgentSnapshot, Floats, MarketTensor, Panel, Tensor
from finrl_pod_app.evaluation.compiled_backtests import backtest_decisions

# Part of identities: raised when the same weights decide differently than before.
DECISIONS = "0.1.0"


def load_champion(run: RunDirectory, members: ChampionMembers) -> PolicyStrategy:
    agents = [run.snapshot(agent) for agent in members.ids]
    return PolicyStrategy(agents, members.ensemble_weights, rule=members.rule, feature_tables=run.tables)


def champion_market(champion: PolicyStrategy, panel: Panel, config: RunConfig) -> MarketTensor:
    """Market with the raw features of a champion: the champion normalises them."""
    champion.check_universe(panel.symbols)
    return build_market(panel, champion.feature_names, (0, len(panel.times) - 1), config.environment.fill)


def member_curves(
    agents: Sequence[AgentSnapshot], market: MarketTensor, config: RunConfig, first: int, last: int
) -> list[tuple[Sequence[int], AccountCurves]]:
    """Simulate each agent on a separate account from bar first to last.

    Returns one (indices in `agents`, curves) for each group of agents with the same specification.
    """
    return [
        (members, simulate_members(actor, params, market, config.environment, first, last, config.mandate))
        for actor, params, members in PolicyStrategy(agents).groups
    ]


def reference_strategy(config: RunConfig) -> Strategy:
    """Strategy that a run is compared with: active returns are relative to it.

    The mandate at tilt 0 with any number of names, traded as the agents trade; equal weight, rebalanced monthly,
    without a mandate.
    """
    mandate = active_mandate(config.mandate)
    if mandate is None:
        return make_baseline(REFERENCE)
    return BasePortfolio(without_name_limits(mandate), config.environment.leverage)


def scored_strategy(scores: str | Callable[[Panel], Floats], config: RunConfig) -> UserStrategy:
    """A strategy that trades scores of the user's own under the mandate of a config, as agents trade theirs.

    scores: a function of a panel that returns [T, N], or its name as file.py:function; it is computed as a feature.
    Raises InputError for a config without a mandate.
    """
    mandate = active_mandate(config.mandate)
    if mandate is None:
        raise InputError('scores tilt the base of a mandate, but mandate.base of the config is "none"; choose a base')
    if isinstance(scores, str):
        name = scores.rpartition(":")[2]
        feature = scores
        identity = strategy_hash(scores)
    else:
        name = getattr(scores, "__name__", "scores")
        feature = f"scores_{name}"
        identity = _source_hash(scores)
        register(feature)(scores)
    leverage = config.environment.leverage
    digest = hashlib.sha256(repr((identity, mandate, leverage)).encode()).hexdigest()
    return UserStrategy(lambda: BasePortfolio(mandate, leverage, name, (feature,)), name, digest)


def trades_scores(strategy: Strategy) -> bool:
    """Whether a strategy was made by `scored_strategy`."""
    return isinstance(strategy, UserStrategy) and isinstance(strategy.inner, BasePortfolio)


def _source_hash(function: Callable[[Panel], Floats]) -> str:
    """Hash of the source of a function with the values that it encloses; random if they cannot be read."""
    try:
        enclosed = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else function
        contents = json.dumps([inspect.getsource(function), to_plain(enclosed)], sort_keys=True)
    except (TypeError, OSError):
        contents = uuid.uuid4().hex
    return hashlib.sha256(contents.encode()).hexdigest()


def reference_base(config: RunConfig) -> str:
    """Name of the base portfolio that the reference holds; empty without a mandate."""
    return "" if active_mandate(config.mandate) is None else config.mandate.base


def open_trial_log(
    registry: TrialRegistry, run: RunDirectory, config: RunConfig, panel: Panel, market: MarketTensor, splits: Splits
) -> TrialLog:
    """Trial log of a run. Backtests the reference on the validation split, on a market in CPU memory."""
    period = period_of(market, splits.validation, config)
    reference, _ = backtest_decisions(reference_strategy(config), panel, period, config.environment)
    return TrialLog(registry, run.path, config, panel, splits.validation, reference)


def period_of(market: MarketTensor, span: Span, config: RunConfig) -> MarketPeriod:
    """The bars of a span with the rules and the cash of a config."""
    return MarketPeriod(market, span.first, span.last, rules_of(config.environment), config.environment.cash)


def champion_identity(config_sha256: str, run: RunDirectory, members: ChampionMembers) -> str:
    """Identity of a champion: hash of the config hash, `DECISIONS` and the weights."""
    digest = hashlib.sha256(repr((config_sha256, DECISIONS, members.ensemble_weights)).encode())
    for agent in members.ids:
        _hash_weights(digest, run.snapshot(agent).weights)
    return digest.hexdigest()


def strategy_identity(strategy: Strategy) -> str:
    """Identity of a strategy object, by which repeated looks are recognised.

    The hash of trained weights, of a user file, or of the class source and the attributes of the object. Any
    other strategy gets a random identity: each use counts as a new look.
    """
    if isinstance(strategy, UserStrategy) and strategy.strategy_hash is not None:
        return strategy.strategy_hash
    digest = hashlib.sha256(repr(strategy.name).encode())
    try:
        if isinstance(strategy, PolicyStrategy):
            digest.update(repr((DECISIONS, strategy.rules, strategy.rule, strategy.ensemble_weights)).encode())
            for weights in strategy.weights():
                _hash_weights(digest, weights)
        else:
            instance = strategy.inner if isinstance(strategy, UserStrategy) else strategy
            contents = [inspect.getsource(type(instance)), to_plain(vars(instance))]
            digest.update(json.dumps(contents, sort_keys=True).encode())
    except (TypeError, OSError):
        digest.update(uuid.uuid4().bytes)
    return digest.hexdigest()


def _hash_weights(digest: hashlib._Hash, weights: Mapping[str, Tensor]) -> None:
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].cpu().contiguous().numpy().tobytes())
