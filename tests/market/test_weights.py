"""Validation of target weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from finrl_pod.market.execution import WEIGHT_TOLERANCE, weights_error

SYMBOLS = ("A", "B", "C")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("weights", "rules"),
    [
        ([0.0, 0.0, 0.0], {}),
        ([0.5, 0.3, 0.2], {}),
        ([1.0 + WEIGHT_TOLERANCE / 2, 0.0, 0.0], {}),
        ([0.5, -WEIGHT_TOLERANCE / 2, 0.0], {}),
        ([0.5, -0.5, 0.0], {"short": True}),
        ([0.9, 0.9, 0.0], {"limit": 2.0}),
        ([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], {}),
    ],
)
def test_valid_weights(weights: Any, rules: dict[str, Any], dtype: torch.dtype) -> None:
    assert weights_error(torch.tensor(weights, dtype=dtype), SYMBOLS, **rules) is None


@pytest.mark.parametrize(
    ("weights", "rules", "fragments"),
    [
        ([0.5, float("nan"), 0.2], {}, ("finite", "nan", "for B")),
        ([0.5, 0.1, float("inf")], {"short": True}, ("finite", "inf", "for C")),
        ([0.9, 0.2, 0.0], {}, ("1 at most", "got 1.1")),
        ([0.9, -0.2, 0.0], {"short": True}, ("1 at most", "got 1.1")),
        ([1.4, 0.2, 0.0], {"limit": 1.5}, ("1.5 at most", "got 1.6")),
        ([1.0 + 2 * WEIGHT_TOLERANCE, 0.0, 0.0], {}, ("1 at most", "got 1.00002")),
        ([0.5, 0.0, -0.2], {}, ("negative", "got -0.2", "for C")),
        ([0.5, 0.0, -2 * WEIGHT_TOLERANCE], {}, ("negative", "got -2e-05", "for C")),
        ([[0.5, 0.5, 0.0], [0.5, -0.25, 0.0]], {}, ("negative", "got -0.25", "for B")),
    ],
)
def test_errors_of_weights_name_value_and_symbol(weights: Any, rules: dict[str, Any], fragments: Any) -> None:
    error = weights_error(torch.tensor(weights, dtype=torch.float64), SYMBOLS, **rules)
    assert error is not None
    assert all(fragment in error for fragment in fragments), error
