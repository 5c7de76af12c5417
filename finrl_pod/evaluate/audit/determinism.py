"""Check determinism: prices, features, decisions and environments computed twice are equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finrl_pod.evaluate.audit.pipeline import (
    Finding,
    Pipeline,
    RolloutStep,
    first_difference,
    record_decisions,
    rollout,
)
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.memory import release_freed_memory, release_mapped_pages
from finrl_pod.types import Floats

CHECK = "determinism"
BARS = 1000  # with them, decisions that differ on 1% of bars are found with a probability of 1 - 2e-9
MEMBER_BARS = 60
STEPS = 16
BLOCK_BARS = 8_192  # rows whose fingerprints are computed at a time
MIXER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, as in Fibonacci hashing


def check_determinism(pipeline: Pipeline, bars: int = BARS) -> list[Finding]:
    """Build markets, decisions and environments twice and require bitwise equality.

    Features are compared on all bars, decisions of the first strategy on `bars` bars after training, and decisions
    of members of an ensemble on `MEMBER_BARS`. One market is kept at a time.
    """
    first_build = _observe(pipeline, bars)
    release_freed_memory()  # an environment in a reference cycle would keep the market
    second_build = _observe(pipeline, bars)
    findings = []
    for name, rows in first_build.rows.items():
        if not np.array_equal(rows, second_build.rows[name]):
            findings.append(failure(pipeline, name, int((rows != second_build.rows[name]).argmax())))
    first = pipeline.out_of_sample
    for name, decisions in first_build.decisions.items():
        for i, (a, b) in enumerate(zip(decisions, second_build.decisions[name], strict=True)):
            if (a is None) != (b is None) or (a is not None and b is not None and not np.array_equal(a, b)):
                findings.append(failure(pipeline, f"strategy {name}", first + i))
                break
    difference = first_difference(first_build.steps, second_build.steps, 0.0)
    if difference is not None:
        findings.append(failure(pipeline, f"the environment's {difference[0]}", difference[1]))
    message = "Two builds from the same seed are identical."
    return findings or [Finding(CHECK, "pass", pipeline.name, message)]


class _Observed(NamedTuple):
    """One build: fingerprints [T] of rows by table, decisions by strategy, steps of environments."""

    rows: Mapping[str, NDArray[np.uint64]]
    decisions: Mapping[str, list[Floats | None]]
    steps: list[RolloutStep]


def _observe(pipeline: Pipeline, bars: int) -> _Observed:
    panel = pipeline.prepare_panel(pipeline.panel)
    rows = {
        f"the preparation of {column}": row_fingerprints(getattr(panel, column))
        for column in (*panel.columns, "tradable")
    }
    market = pipeline.build(panel)
    features = market.features.cpu().numpy()
    rows |= {f"feature {name}": row_fingerprints(features[..., i]) for i, name in enumerate(market.feature_names)}
    first = pipeline.out_of_sample
    end = len(panel.times) - 1
    decisions = {}
    for i, (name, strategy) in enumerate(pipeline.strategies.items()):
        last = min(first + (MEMBER_BARS if i else bars), end)
        period = MarketPeriod(market, first, last, pipeline.rules, pipeline.cash)
        decisions[name] = record_decisions(strategy, panel, period)
    if pipeline.make_env is None:
        return _Observed(rows, decisions, [])
    span = (max(first, market.first), min(first + MEMBER_BARS, end, market.steps - 1))
    return _Observed(rows, decisions, rollout(pipeline.make_env(market, *span), STEPS))


def row_fingerprints(table: NDArray[Any]) -> NDArray[np.uint64]:
    """[T] of a table [T, N]: equal rows have equal fingerprints, others differ with a probability of 1 - 2^-64 each.

    A linear combination modulo 2^64 of the bits of a row, with odd coefficients; NaNs of different bits count as equal.
    """
    result = np.empty(len(table), dtype=np.uint64)
    for begin in range(0, len(table), BLOCK_BARS):
        block = np.ascontiguousarray(table[begin : begin + BLOCK_BARS], dtype=np.float64)
        bits = np.where(np.isnan(block), np.nan, block).view(np.uint64)
        words = (bits ^ (bits >> np.uint64(32))) * MIXER  # spreads the bits of a number over its word
        coefficients = (2 * np.arange(1, bits.shape[1] + 1, dtype=np.uint64) + 1) * MIXER
        result[begin : begin + BLOCK_BARS] = ((words ^ (words >> np.uint64(29))) * coefficients).sum(1, dtype=np.uint64)
        release_mapped_pages()
    return result


def failure(pipeline: Pipeline, name: str, t: int) -> Finding:
    """A failure of a part that differs at bar t although nothing was changed."""
    bar = pipeline.bar(t)
    message = (
        f"{name} is not reproducible: two computations from the same prices and seed differ, first at {bar}. Use a "
        "generator with a fixed seed, and no clock."
    )
    return Finding(CHECK, "fail", name, message, bar)
