"""Counts every trial of a run in the register, and keeps its returns beside the run."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence

import numpy as np
from finrl_pod_strategies.baselines import run_baseline

from finrl_pod.config import RunConfig
from finrl_pod.data.dates import stamp
from finrl_pod.data.splits import Span, Splits
from finrl_pod.errors import RunError
from finrl_pod.evaluate.gate import REFERENCE
from finrl_pod.evaluate.metrics import simple_returns
from finrl_pod.evaluate.registry import Registry, Trial
from finrl_pod.evaluate.sharpe import is_constant
from finrl_pod.files import write_bytes
from finrl_pod.market.rules import rules_of
from finrl_pod.pod.run_directory import RunDirectory
from finrl_pod.types import BacktestResult, Floats, MarketTensor, Panel, Score

FOLDER = "returns"
CHAMPION = "champion"


class TrialLog:
    """The register's entries of one run. Call it with each generation, as `Tournament` does."""

    def __init__(
        self,
        registry: Registry,
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
