"""Validation of target weights: one rule for environments, backtests and the paper-trading daemon.

The compiled replay of backtests (`finrl_pod.evaluate.variations`) applies the same rule and leaves the message to this
module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from finrl_pod.types import Tensor

WEIGHT_TOLERANCE = 1e-5  # weights computed in float32 add up to 1 only this closely


def weights_error(
    weights: Tensor, symbols: Sequence[str], *, limit: float = 1.0, short: bool = False, max_weight: float = math.inf
) -> str | None:
    """Describe what is wrong with target weights, or None when they are valid.

    weights: [..., N] fractions of equity, float. Valid weights are finite, their absolute values add up to at most
    `limit`, none is above `max_weight`, and without `short` none is negative; all bounds allow `WEIGHT_TOLERANCE`.
    A mandate bounds desired weights: targets may drift above its `max_weight` with prices.
    """
    gross = float(weights.abs().sum(-1).max())  # NaN propagates through max: one comparison finds NaN and excess alike
    lowest = 0.0 if short else float(weights.min())
    largest = -math.inf if math.isinf(max_weight) else float(weights.max())
    if gross <= limit + WEIGHT_TOLERANCE and lowest >= -WEIGHT_TOLERANCE and largest <= max_weight + WEIGHT_TOLERANCE:
        return None
    broken = ~torch.isfinite(weights)
    if bool(broken.any()):
        at = int(broken.nonzero()[0, -1])
        return f"must be finite, got {float(weights[broken][0])} for {symbols[at]}"
    if gross > limit + WEIGHT_TOLERANCE:
        return f"may add up to {limit:g} at most (absolute values), got {gross:.6g}; scale them down"
    if largest > max_weight + WEIGHT_TOLERANCE:
        at = int(weights.reshape(-1, weights.shape[-1]).max(0).values.argmax())
        return f"must be at most {max_weight:g} (mandate.max_weight), got {largest:.6g} for {symbols[at]}"
    at = int(weights.reshape(-1, weights.shape[-1]).min(0).values.argmin())
    return f"must not be negative without short selling, got {lowest:.6g} for {symbols[at]}"
