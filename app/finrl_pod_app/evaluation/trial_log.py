"""Open a run's trial log, name its reference, and identify champions and strategies for the registry of looks."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from finrl_pod_strategies.baselines import make_baseline
from finrl_pod_strategies.mandate_account import BasePortfolio
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.user_strategy import UserStrategy

from finrl_pod.data.splits import Splits
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.market.mandate import active_mandate
from finrl_pod.market.rules import rules_of
from finrl_pod.promotion.rules import REFERENCE
from finrl_pod.promotion.trial_log import TrialLog
from finrl_pod.promotion.trial_registry import TrialRegistry
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.selection import ChampionMembers
from finrl_pod.types import MarketTensor, Panel

# Part of identities, in place of the program's version: raised where the same weights decide otherwise than before.
DECISIONS = "0.1.0"


def reference_strategy(config: RunConfig) -> Strategy:
    """Strategy that active returns of a run are over.

    The mandate at tilt 0, which trades as the agents do; equal weight, rebalanced monthly, without a mandate.
    """
    mandate = active_mandate(config.mandate)
    return make_baseline(REFERENCE) if mandate is None else BasePortfolio(mandate, config.environment.leverage)


def reference_base(config: RunConfig) -> str:
    """The base that the reference holds under the mandate's trading limits; empty without a mandate."""
    return "" if active_mandate(config.mandate) is None else config.mandate.base


def open_trial_log(
    registry: TrialRegistry, run: RunDirectory, config: RunConfig, panel: Panel, market: MarketTensor, splits: Splits
) -> TrialLog:
    """Trial log of a run. Backtests the run's reference on the validation split, on a market in CPU memory."""
    environment, validation = config.environment, splits.validation
    terms = (validation.first, validation.last, rules_of(environment), environment.cash)
    return TrialLog(
        registry, run.path, config, panel, validation, backtest(reference_strategy(config), panel, market, *terms)
    )


def champion_identity(config_sha256: str, run: RunDirectory, members: ChampionMembers) -> str:
    """Identity of a champion: hash of its config's hash, `DECISIONS` and its weights."""
    digest = hashlib.sha256(repr((config_sha256, DECISIONS, members.ensemble_weights)).encode())
    for agent in members.ids:
        weights = run.snapshot(agent).weights
        for name in sorted(weights):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(weights[name].numpy()).tobytes())
    return digest.hexdigest()


def strategy_identity(strategy: Strategy) -> str:
    """Identity of a strategy object, by which repeated looks are recognised.

    The hash of a trained agent's weights, of a user's file, or of the class's source and the object's attributes. Any
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
    """Add a value's type and contents to a digest. Raises TypeError for a type whose contents are not known."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        digest.update(repr((value.dtype, value.shape)).encode() + np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _update_digest(digest, {"": type(value).__qualname__, **vars(value)})
    elif isinstance(value, Mapping):
        _update_digest(digest, [part for key in sorted(value) for part in (key, value[key])])
    elif isinstance(value, list | tuple):
        digest.update(f"{type(value).__name__} {len(value)} ".encode())
        for part in value:
            _update_digest(digest, part)
    elif value is None or isinstance(value, bool | int | float | str | bytes | np.generic):
        digest.update(f"{type(value).__name__} {value!r} ".encode())
    else:
        raise TypeError(f"{type(value).__name__} has contents of unknown type")
