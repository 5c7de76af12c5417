"""Champions of runs: loading, their reference, their identity, and the trial log of a run."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from finrl_pod_strategies.baselines import make_baseline
from finrl_pod_strategies.mandate_account import BasePortfolio
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.user_strategy import UserStrategy

from finrl_pod.data.splits import Span, Splits
from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.backtest import Ledger, backtest
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.market.mandate import active_mandate
from finrl_pod.market.rules import rules_of
from finrl_pod.promotion.gate import REFERENCE
from finrl_pod.promotion.trial_log import TrialLog
from finrl_pod.promotion.trial_registry import TrialRegistry
from finrl_pod.protocols import Strategy
from finrl_pod.rl.acting import run_members
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.selection import ChampionMembers
from finrl_pod.types import AgentSnapshot, MarketTensor, Panel

# Part of identities: raised when the same weights decide differently than before.
DECISIONS = "0.1.0"


def load_champion(run: RunDirectory, members: ChampionMembers) -> PolicyStrategy:
    return PolicyStrategy([run.snapshot(agent) for agent in members.ids], members.ensemble_weights, rule=members.rule)


def champion_market(champion: PolicyStrategy, panel: Panel, config: RunConfig) -> MarketTensor:
    """Market with the raw features of a champion: the champion normalises them."""
    champion.check_universe(panel.symbols)
    return build_market(panel, champion.feature_names, (0, len(panel.times) - 1), config.environment.fill)


def member_ledgers(
    agents: Sequence[AgentSnapshot], market: MarketTensor, config: RunConfig, first: int, last: int
) -> list[tuple[Sequence[int], Ledger]]:
    """Simulate each agent on a separate account from bar first to last.

    Returns one (indices in `agents`, ledger) for each group of agents with the same specification.
    """
    return [
        (members, run_members(actor, params, market, config.environment, first, last, config.mandate))
        for actor, params, members in PolicyStrategy(agents).groups
    ]


def reference_strategy(config: RunConfig) -> Strategy:
    """Strategy that a run is compared with: active returns are relative to it.

    The mandate at tilt 0, traded as the agents trade; equal weight, rebalanced monthly, without a mandate.
    """
    mandate = active_mandate(config.mandate)
    return make_baseline(REFERENCE) if mandate is None else BasePortfolio(mandate, config.environment.leverage)


def reference_base(config: RunConfig) -> str:
    """Name of the base portfolio that the reference holds; empty without a mandate."""
    return "" if active_mandate(config.mandate) is None else config.mandate.base


def open_trial_log(
    registry: TrialRegistry, run: RunDirectory, config: RunConfig, panel: Panel, market: MarketTensor, splits: Splits
) -> TrialLog:
    """Trial log of a run. Backtests the reference on the validation split, on a market in CPU memory."""
    reference = backtest(reference_strategy(config), panel, period_of(market, splits.validation, config))
    return TrialLog(registry, run.path, config, panel, splits.validation, reference)


def period_of(market: MarketTensor, span: Span, config: RunConfig) -> MarketPeriod:
    """The bars of a span with the rules and the cash of a config."""
    return MarketPeriod(market, span.first, span.last, rules_of(config.environment), config.environment.cash)


def champion_identity(config_sha256: str, run: RunDirectory, members: ChampionMembers) -> str:
    """Identity of a champion: hash of the config hash, `DECISIONS` and the weights."""
    digest = hashlib.sha256(repr((config_sha256, DECISIONS, members.ensemble_weights)).encode())
    for agent in members.ids:
        weights = run.snapshot(agent).weights
        for name in sorted(weights):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(weights[name].numpy()).tobytes())
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
            _update_digest(digest, [DECISIONS, strategy.rules, strategy.rule, strategy.ensemble_weights])
            _update_digest(digest, strategy.weights())
        else:
            instance = strategy.inner if isinstance(strategy, UserStrategy) else strategy
            _update_digest(digest, [inspect.getsource(type(instance)), vars(instance)])
    except (TypeError, OSError):
        digest.update(uuid.uuid4().bytes)
    return digest.hexdigest()


def _update_digest(digest: hashlib._Hash, value: Any) -> None:
    """Add the type and contents of a value to a digest. Raises TypeError for a type whose contents are not known."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        digest.update(repr((value.dtype, value.shape)).encode() + np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _update_digest(digest, {"": type(value).__qualname__, **vars(value)})
    elif isinstance(value, Mapping):
        _update_digest(digest, [item for key in sorted(value) for item in (key, value[key])])
    elif isinstance(value, list | tuple):
        digest.update(f"{type(value).__name__} {len(value)} ".encode())
        for item in value:
            _update_digest(digest, item)
    elif value is None or isinstance(value, bool | int | float | str | bytes | np.generic):
        digest.update(f"{type(value).__name__} {value!r} ".encode())
    else:
        raise TypeError(f"{type(value).__name__} has contents of unknown type")
