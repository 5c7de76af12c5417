"""Why an agent decides as it does: the score of each asset as a sum of contributions of the features.

A score is what the agent decides from, one number for each asset: under a mandate the score that tilts its base weight,
else the score before the softmax, the weight, the number of shares, or the asset of the choice. The score of an
ensemble is the mean of the scores of its members, each counting with its ensemble weight. Members decide one by one and
their weights are averaged (or voted on), not their scores: the target weight is close to the weight of the mean score,
not equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from finrl_pod.types import Bools, Floats, Tensor

REST = "everything else"  # contribution of what is no feature


@dataclass(frozen=True, eq=False)
class ScoreParts:
    """The scores of one decision as sums.

    features: F names, and `REST` last if it contributes: the score of an asset whose features are all 0, from
    holdings, constants and whatever else the agent observes of its account. scores: [N] float64. contributions: [N, F]
    float64; a row adds up to the score. values: [N, F], the normalised features, NaN for `REST`. tradable: [N].
    """

    time: np.datetime64
    features: tuple[str, ...]
    scores: Floats
    contributions: Floats
    values: Floats
    tradable: Bools


@dataclass(frozen=True, eq=False)
class ScoredDecision:
    """A decision from which the contributions to its scores can be computed.

    rows: [B, N, F] features as the networks read them, the decision bar last; 0 is the mean of the training period.
    tradable: [N] at the decision bar. score: scores [N] float64 of such rows.
    """

    time: np.datetime64
    features: tuple[str, ...]
    rows: Tensor
    tradable: Bools
    score: Callable[[Tensor], Tensor]

    def parts(self) -> ScoreParts:
        """The scores and the contributions of the features.

        The features are added one by one to rows of zeros, in their order and in the reverse order: a contribution is
        the mean of both changes of the score. The sum is exact for every network. If scores are linear, a contribution
        is weight times feature. If features act together in pairs at most, it is the Shapley value; else it is the
        estimate of that value from two antithetic orders (Strumbelj and Kononenko 2014).
        """
        columns = torch.arange(len(self.features))
        counts = range(len(columns) + 1)
        forward = torch.stack([self._score_of(columns < count) for count in counts])  # [F + 1, N]
        backward = torch.stack([self._score_of(columns >= count) for count in counts])
        changes = (forward.diff(dim=0) - backward.diff(dim=0)) / 2
        names = self.features
        values = self.rows[-1].double()
        if bool(forward[0].any()):
            names = (*names, REST)
            changes = torch.cat([changes, forward[:1]])
            values = torch.cat([values, torch.full_like(values[:, :1], torch.nan)], -1)
        return ScoreParts(
            self.time, names, forward[-1].numpy(), changes.T.contiguous().numpy(), values.numpy(), self.tradable
        )

    def _score_of(self, is_known: Tensor) -> Tensor:
        """Scores [N] if only some features are known: [F] bool."""
        return self.score(torch.where(is_known, self.rows, 0.0))
