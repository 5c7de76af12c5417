"""Validation of target weights: one rule for environments, backtests and the paper-trading daemon.

The compiled replay of backtests (`finrl_pod.evaluate.variations`) applies the same rule and leaves the message to this
module.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from finrl_pod.types import Tensor

WEIGHT_TOLERANCE = 1e-5  # weights computed in float32 add up to 1 only this closely


def weights_error(weights: Tensor, symbols: Sequence[str], *, limit: float = 1.0, short: bool = False) -> str | None:
    """Describe what is wrong with target weights, or None when they are valid.

    weights: [..., N] fractions of equity, float. Valid weights are finite, their absolute values add up to at most
    `limit`, and without `short` none is negative; both bounds allow `WEIGHT_TOLERANCE`.
    """
    gross = float(weights.abs().sum(-1).max())  # NaN propagates through max: one comparison finds NaN and excess alike
    lowest = 0.0 if short else float(weights.min())
    if gross <= limit + WEIGHT_TOLERANCE and lowest >= -WEIGHT_TOLERANCE:
        return None
    broken = ~torch.isfinite(weights)
    if bool(broken.any()):
        at = int(broken.nonzero()[0, -1])
        return f"must be finite, got {float(weights[broken][0])} for {symbols[at]}"
    if gross > limit + WEIGHT_TOLERANCE:
        return f"may add up to {limit:g} at most (absolute values), got {gross:.6g}; scale them down"
    at = int(weights.reshape(-1, weights.shape[-1]).min(0).values.argmin())
    return f"must not be negative without short selling, got {lowest:.6g} for {symbols[at]}"
