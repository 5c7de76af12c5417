"""Stored results against independent formulas."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

RECORDS = Path(__file__).parents[2] / "benchmarks" / "markets.jsonl"


def test_recorded_schedules_are_near_the_closed_form() -> None:
    """The cost of every recorded schedule, in plain Python, relative to the schedule of Almgren and Chriss."""
    records = [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]
    schedules = [record for record in records if record["name"].startswith("execution_")]
    assert len(schedules) == 15
    for c in schedules:
        x = c["holdings"]
        n, tau = len(x) - 1, c["horizon"] / (len(x) - 1)
        eta, risk = c["temporary"] - c["permanent"] * tau / 2, c["risk_aversion"] * c["volatility"] ** 2 * tau
        kappa = math.acosh(risk * tau / (2 * eta) + 1) / tau
        best = [c["order"] * math.sinh(kappa * tau * (n - j)) / math.sinh(kappa * c["horizon"]) for j in range(n + 1)]
        costs = [
            eta / tau * sum((a - b) ** 2 for a, b in itertools.pairwise(h)) + risk * sum(v * v for v in h[1:])
            for h in (x, best)
        ]
        assert costs[0] / costs[1] - 1 == pytest.approx(c["value"], rel=0.02)
        assert c["value"] < 0.01
