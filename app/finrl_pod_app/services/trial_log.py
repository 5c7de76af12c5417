"""Counts trials and looks in the register, and keeps their returns beside the run.

Baselines are not counted. They were settled before any prices were seen, and every verdict is shown beside them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import io
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from finrl_pod_strategies.baselines import run_baseline
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.user_strategy import UserStrategy

from finrl_pod import __version__
from finrl_pod.data.dates import stamp
from finrl_pod.data.splits import Span, Splits
from finrl_pod.errors import RunError
from finrl_pod.evaluate.metrics import is_constant, simple_returns
from finrl_pod.files import write_bytes
from finrl_pod.market.rules import rules_of
from finrl_pod.promotion.gate import REFERENCE
from finrl_pod.promotion.trial_registry import Look, Trial, TrialRegistry
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.leaderboard import ChampionMembers
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import BacktestResult, Floats, MarketTensor, Panel, Score

FOLDER = "returns"
CHAMPION = "champion"


class TrialLog:
    """The register's entries of one run. Call it with each generation, as `Tournament` does."""

    def __init__(
        self,
        registry: TrialRegistry,
        run: RunDirectory,
        config: RunConfig,
        panel: Panel,
        market: MarketTensor,
        splits: Splits,
    ) -> None:
        """market: on the CPU. Equal weight is run on the validation split at once: all trials are compared with it."""
        self.registry, self.run, self.config, self.data = registry, run, config, panel.sha256
        self.first, self.last = dates(panel, splits.validation)
        environment = config.environment
        terms = (splits.validation.first, splits.validation.last, rules_of(environment), environment.cash)
        self._reference = simple_returns(run_baseline(REFERENCE, panel, market, *terms).equity)

    def __call__(self, generation: int, scores: Sequence[Score], equity: Floats) -> None:
        """Count a generation. equity: [T, P] on validation, NaN for a member that broke."""
        excess = np.full((len(equity) - 1, equity.shape[1]), np.nan)
        for p in np.flatnonzero(np.isfinite(equity).all(0)):
            excess[:, p] = simple_returns(equity[:, p]) - self._reference
        buffer = io.BytesIO()
        np.save(buffer, excess, allow_pickle=False)
        write_bytes(self.run.path / FOLDER / f"{generation:04d}.npy", buffer.getvalue())
        trials = [
            self._trial(score.id, generation, excess[:, p], dict(score.hyperparameters))
            for p, score in enumerate(scores)
        ]
        self.registry.add(self.data, self.config.sha256, trials)

    def champion(self, result: BacktestResult) -> Floats:
        """Count the ensemble, by its backtest on validation. Gives its returns over equal weight [T]."""
        excess: Floats = simple_returns(result.equity) - self._reference
        self.registry.add(self.data, self.config.sha256, [self._trial(CHAMPION, -1, excess, {})])
        return excess

    def matrix(self) -> Floats:
        """[T, N] returns over equal weight on validation of every agent that the run has made so far."""
        files = sorted((self.run.path / FOLDER).glob("*.npy"))
        if not files:
            raise RunError(f"{self.run.path / FOLDER} holds no returns of trials: start a new run")
        try:
            return np.concatenate([np.load(file, allow_pickle=False) for file in files], axis=1)
        except (OSError, ValueError):
            raise RunError(f"the returns of trials in {self.run.path / FOLDER} are damaged: start a new run") from None

    def _trial(self, agent: str, generation: int, excess: Floats, hyperparameters: dict[str, float]) -> Trial:
        sound = bool(np.isfinite(excess).all())
        moves = sound and not is_constant(excess)
        # The same agent of the same config with other returns, as another version would make it, is another trial.
        digest = hashlib.sha256(np.ascontiguousarray(excess).tobytes()).hexdigest()[:16]
        return Trial(
            agent=f"{agent}:{digest}",
            seed=self.config.seed,
            generation=generation,
            first=self.first,
            last=self.last,
            sharpe=float(excess.mean() / excess.std(ddof=1)) if moves else None,
            excess=excess if sound else None,
            hyperparameters=hyperparameters,
        )


def dates(panel: Panel, span: Span) -> tuple[str, str]:
    """First and last bar of a span as text that sorts by time."""
    return stamp(panel.times[span.first], panel.bar), stamp(panel.times[span.last], panel.bar)


def log_look(panel: Panel, span: Span, subject: str, what: str, registry: TrialRegistry | None = None) -> int:
    """Log it; returns how many looks there are at these bars by now, also in other data sets that show the same market
    on the same days. The same subject is counted once.

    Raises SetupError where the register cannot be used: what cannot be counted must not be looked at.
    """
    first, last = dates(panel, span)
    return (registry or TrialRegistry()).look(Look(panel.sha256, subject, first, last, what), panel)


def champion_identity(config_sha256: str, run: RunDirectory, members: ChampionMembers) -> str:
    """What names a champion: its config, its version, and its very weights."""
    digest = hashlib.sha256(repr((config_sha256, __version__, members.shares)).encode())
    for agent in members.ids:
        weights = run.snapshot(agent).weights
        for name in sorted(weights):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(weights[name].numpy()).tobytes())
    return digest.hexdigest()


def strategy_identity(strategy: Strategy) -> str:
    """What names an object that somebody made: the weights of a trained one, the text of a user's file, else its class
    with the class's source and its settings.

    What cannot be told from another by these is a subject of its own each time: it is rather counted twice than not.
    """
    if isinstance(strategy, UserStrategy) and strategy.strategy_hash is not None:
        return strategy.strategy_hash
    digest = hashlib.sha256(repr(strategy.name).encode())
    try:
        if isinstance(strategy, PolicyStrategy):
            _feed(digest, [__version__, strategy.rules, strategy.rule, strategy.shares])
            _feed(digest, [params for _, params, _ in strategy.groups])
        else:
            maker = strategy.inner if isinstance(strategy, UserStrategy) else strategy
            _feed(digest, [inspect.getsource(type(maker)), vars(maker)])
    except (TypeError, OSError):
        digest.update(uuid.uuid4().bytes)
    return digest.hexdigest()


def _feed(digest: hashlib._Hash, value: Any) -> None:
    """A value's kind and contents. Raises TypeError for one whose contents are not known to be all there is."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        digest.update(repr((value.dtype, value.shape)).encode() + np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _feed(digest, {"": type(value).__qualname__, **vars(value)})
    elif isinstance(value, Mapping):
        _feed(digest, [part for key in sorted(value) for part in (key, value[key])])
    elif isinstance(value, list | tuple):
        digest.update(f"{type(value).__name__} {len(value)} ".encode())
        for part in value:
            _feed(digest, part)
    elif value is None or isinstance(value, bool | int | float | str | bytes | np.generic):
        digest.update(f"{type(value).__name__} {value!r} ".encode())
    else:
        raise TypeError(f"{type(value).__name__} has no known contents")
