"""Solved weights as the start of a policy's training."""

from __future__ import annotations

from collections.abc import Mapping

from finrl_pod.types import Tensor

LINEAR = "linear_w"  # weights [F, ..] of the features in an asset's score, in every policy that has them


def with_linear_weights(tensors: Mapping[str, Tensor], start: Tensor) -> dict[str, Tensor]:
    """A member's initial tensors whose scores are linear in the features, with these weights.

    start: [F]. Weights of an encoder's code and of further heads (a standard deviation) keep their initial values.
    """
    weights = tensors[LINEAR].clone()
    scores = weights[: len(start)]
    (scores if scores.dim() == 1 else scores[:, 0]).copy_(start.to(weights))
    return {**tensors, LINEAR: weights}


def started(rows: list[dict[str, Tensor]], start: Tensor | None, scale: float = 1.0) -> list[dict[str, Tensor]]:
    """Initial tensors of P members, from a start.

    start: [F] for all or [P, F] for each, None for new weights. scale: of an action in units of a score.
    """
    if start is None:
        return rows
    each = start.expand(len(rows), -1) / scale
    return [with_linear_weights(row, weights) for row, weights in zip(rows, each, strict=True)]
