"""Count the trials and looks of runs in the registry, and list them by data set.

Baselines are not counted: they were fixed before any prices were seen, and every verdict compares with them.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from finrl_pod.data.dates import stamp
from finrl_pod.data.splits import Span
from finrl_pod.errors import RunError
from finrl_pod.evaluate.metrics import is_constant, simple_returns
from finrl_pod.files import write_bytes
from finrl_pod.promotion.gate import CHAMPION
from finrl_pod.promotion.trial_registry import Look, Trial, TrialRegistry
from finrl_pod.settings.run import RunConfig
from finrl_pod.types import BacktestResult, Floats, Panel, Score

FOLDER = "returns"


class TrialLog:
    """Count the trials of one run and store their returns in its folder. Call it with all results of a run."""

    def __init__(
        self,
        registry: TrialRegistry,
        folder: Path,
        config: RunConfig,
        panel: Panel,
        validation: Span,
        reference: BacktestResult,
    ) -> None:
        """folder: folder of the run. reference: result on the validation split that all trials are compared with."""
        self.registry = registry
        self.folder = folder
        self.config = config
        self.data = panel.sha256
        self.first, self.last = span_dates(panel, validation)
        self.reference = reference
        self._reference = simple_returns(reference.equity)

    def __call__(self, number: int, scores: Sequence[Score], equity: Floats) -> None:
        """Count agents. number: unique number of these results in the run.

        equity: [T, P] on validation, NaN for a member that diverged.
        """
        excess = np.full((len(equity) - 1, equity.shape[1]), np.nan)
        for p in np.flatnonzero(np.isfinite(equity).all(0)):
            excess[:, p] = simple_returns(equity[:, p]) - self._reference
        buffer = io.BytesIO()
        np.save(buffer, excess, allow_pickle=False)
        write_bytes(self.folder / FOLDER / f"{number:04d}.npy", buffer.getvalue())
        trials = [
            self._trial(score.id, score.generation, excess[:, p], dict(score.hyperparameters))
            for p, score in enumerate(scores)
        ]
        self.registry.add(self.data, self.config.sha256, trials)

    def champion(self, result: BacktestResult) -> Floats:
        """Count the ensemble by its backtest on validation; returns its active returns [T]."""
        excess: Floats = simple_returns(result.equity) - self._reference
        self.registry.add(self.data, self.config.sha256, [self._trial(CHAMPION, -1, excess, {})])
        return excess

    def matrix(self) -> Floats:
        """Active returns on validation [T, N] of every agent that the run has made so far."""
        files = sorted((self.folder / FOLDER).glob("*.npy"))
        if not files:
            raise RunError(f"{self.folder / FOLDER} holds no returns of trials: start a new run")
        try:
            return np.concatenate([np.load(file, allow_pickle=False) for file in files], axis=1)
        except (OSError, ValueError):
            raise RunError(f"the returns of trials in {self.folder / FOLDER} are damaged: start a new run") from None

    def _trial(self, agent: str, generation: int, excess: Floats, hyperparameters: dict[str, float]) -> Trial:
        finite = bool(np.isfinite(excess).all())
        varies = finite and not is_constant(excess)
        # The same agent of the same config with other returns, as another version would make it, is another trial.
        digest = hashlib.sha256(np.ascontiguousarray(excess).tobytes()).hexdigest()[:16]
        return Trial(
            agent=f"{agent}:{digest}",
            seed=self.config.seed,
            generation=generation,
            first=self.first,
            last=self.last,
            sharpe=float(excess.mean() / excess.std(ddof=1)) if varies else None,
            excess=excess if finite else None,
            hyperparameters=hyperparameters,
        )


def span_dates(panel: Panel, span: Span) -> tuple[str, str]:
    """Times of the first and last bar of a span, as text that sorts by time."""
    return stamp(panel.times[span.first], panel.bar), stamp(panel.times[span.last], panel.bar)


class LookCount(NamedTuple):
    """number: count of this look, for the level of its test. so_far: all looks at its bars, later ones included."""

    number: int
    so_far: int


def log_look(panel: Panel, span: Span, subject: str, what: str, registry: TrialRegistry | None = None) -> LookCount:
    """Log a look at bars of a panel; returns its number among those at them, including other data sets of the market.

    subject: identity of what is tested; the same subject counts once. what: description for the list of looks. Raises
    SetupError if the registry cannot be used: a look that cannot be counted must not happen.
    """
    first, last = span_dates(panel, span)
    registry = registry or TrialRegistry()
    number = registry.look(Look(panel.sha256, subject, first, last, what), panel)
    return LookCount(number, looks_so_far(panel, span, registry))


def looks_so_far(panel: Panel, span: Span, registry: TrialRegistry | None = None) -> int:
    """Number of looks at bars of a panel, including those at other data sets of the market."""
    return (registry or TrialRegistry()).count_looks(Look(panel.sha256, "", *span_dates(panel, span), ""), panel)
