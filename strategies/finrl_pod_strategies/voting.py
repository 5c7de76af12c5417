"""What several agents decide together by vote."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from finrl_pod.types import Floats

HALF = 0.5
ROUNDING = 1e-12  # shares that sum to a half but for rounding are a half


def majority(choices: Sequence[int], shares: Floats) -> int:
    """The choice with the largest sum of shares; among equals that of the member who stands first."""
    votes: dict[int, float] = {}
    for choice, share in zip(choices, shares, strict=True):
        votes[choice] = votes.get(choice, 0.0) + float(share)
    most = max(votes.values())
    return next(choice for choice in choices if votes[choice] >= most - ROUNDING)


def median_weights(weights: Floats, shares: Floats) -> Floats:
    """The vote on numbers: of weights [M, N] the median [N] for each asset, each member counting with its share [M].

    No majority wants more of an asset than that, and none wants less. Where the medians together hold more than any
    single member does they are scaled down to what the fullest member holds.
    """
    order = np.argsort(weights, axis=0, kind="stable")
    values = np.take_along_axis(weights, order, 0)
    reached = np.cumsum(shares[order], 0) / shares.sum()  # [M, N]
    lower = (reached >= HALF - ROUNDING).argmax(0)
    upper = (reached > HALF + ROUNDING).argmax(0)
    columns = np.arange(weights.shape[1])
    median: Floats = (values[lower, columns] + values[upper, columns]) / 2
    gross, most = float(np.abs(median).sum()), float(np.abs(weights).sum(1).max())
    return median * (most / gross) if gross > most else median
