"""Check determinism, that two computations are equal, and warm-up, that nothing depends on more history than stated."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finrl_pod.data.blocks import row_blocks
from finrl_pod.data.panel import cut
from finrl_pod.errors import FeatureError
from finrl_pod.evaluate.audit.pipeline import (
    Finding,
    Pipeline,
    RolloutStep,
    Status,
    decision_bars,
    decision_difference,
    first_difference,
    record_decisions,
    rollout,
)
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.memory import release_freed_memory, release_mapped_pages
from finrl_pod.types import Floats, MarketTensor, Panel

CHECK = "determinism"
BARS = 1000  # with them, decisions that differ on 1% of bars are found with a probability of 1 - 2e-9
MEMBER_BARS = 60
STEPS = 16
MIXER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, as in Fibonacci hashing


def check_determinism(pipeline: Pipeline, bars: int = BARS) -> list[Finding]:
    """Build markets, decisions and environments twice and require bitwise equality.

    Features are compared on all bars, decisions of the first strategy on `bars` bars after training, and decisions
    of members of an ensemble on `MEMBER_BARS`. The market that agents were trained on counts as one of the two builds;
    without one, one market is kept at a time.
    """
    panel = pipeline.prepare_panel(pipeline.panel)
    first_build = _observe(
        pipeline, panel, pipeline.build(panel) if pipeline.trained is None else pipeline.trained, bars
    )
    release_freed_memory()  # an environment in a reference cycle would keep the market
    if pipeline.trained is not None:
        second_build = _observe(pipeline, *pipeline.whole, bars)
    else:
        panel = pipeline.prepare_panel(pipeline.panel)
        second_build = _observe(pipeline, panel, pipeline.build(panel), bars)
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


def _observe(pipeline: Pipeline, panel: Panel, market: MarketTensor, bars: int) -> _Observed:
    rows = {
        f"the preparation of {column}": row_fingerprints(getattr(panel, column))
        for column in (*panel.columns, "tradable")
    }
    fingerprints = row_fingerprints(market.features.cpu().numpy())
    rows |= {f"feature {name}": fingerprints[:, i] for i, name in enumerate(market.feature_names)}
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
    """[T] of a table [T, N], or [T, F] of [T, N, F]: equal rows have equal ones, others with a probability of 2^-64.

    A linear combination modulo 2^64 of the bits of a row, with odd coefficients; NaNs of different bits count as equal.
    """
    result = np.empty((len(table), *table.shape[2:]), dtype=np.uint64)
    coefficients = (2 * np.arange(1, table.shape[1] + 1, dtype=np.uint64) + 1) * MIXER
    for rows in row_blocks(table.shape):
        block = np.array(np.moveaxis(table[rows], 1, -1), dtype=np.float64, order="C")
        np.copyto(block, np.nan, where=np.isnan(block))
        bits = block.view(np.uint64)
        words = (bits ^ (bits >> np.uint64(32))) * MIXER  # spreads the bits of a number over its word
        result[rows] = (words ^ (words >> np.uint64(29))) @ coefficients
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


# ---------------------------------------------------------------------- warm-up

WARM_UP_CHECK = "warm-up"
WARM_UP = 756  # bars; the longest built-in window is 504, and exponential averages have an infinite memory
TOLERANCE = 0.01  # features: training deviations; decisions: sum of absolute differences of weights
WARM_UP_STEPS = 22  # decisions compared, so that monthly strategies act


def check_warm_up(
    pipeline: Pipeline,
    bars: int = WARM_UP,
    probes: int = 6,
    ignored_names: Set[str] = frozenset(),
    *,
    deployed: bool = False,
) -> list[Finding]:
    """Compare features and decisions computed from the whole history with those from the last `bars` bars.

    If fewer than `bars` bars lie before a probed bar, nine tenths of them are used. ignored_names: parts that are not
    deterministic. deployed: the daemon reads `bars` bars, so that what needs more is a failure; a warning otherwise.
    """
    whole_panel, market = pipeline.whole
    worst: dict[str, tuple[float, int]] = {}
    history = bars
    status: Status = "fail" if deployed else "warn"
    for t in decision_bars(pipeline, probes):
        history = min(history, int(0.9 * (t - WARM_UP_STEPS)))
        if history < bars:
            status = "warn"
        start = t - WARM_UP_STEPS - history
        cut_panel = pipeline.prepare_panel(cut(pipeline.panel, start, min(t + 2, len(pipeline.panel.times))))
        try:
            short = pipeline.build(cut_panel)
        except FeatureError as error:
            message = f"{history} bars of history are too few: {error}."
            return [Finding(WARM_UP_CHECK, status, "features", message, pipeline.bar(t))]
        for name, size, row in (
            *_compare_features(market, short, start, history, t),
            *_compare_decisions(pipeline, (whole_panel, market), (cut_panel, short), start, history, t),
        ):
            if name not in ignored_names and (name not in worst or size > worst[name][0]):
                worst[name] = (size, row)
    findings = []
    reader = " that the daemon reads (data.window)" if deployed else ""
    for name, (size, t) in worst.items():
        if size > TOLERANCE:
            bar = pipeline.bar(t)
            message = (
                f"{name} depends on more than the {history} bars of history{reader}: without older bars it changes by "
                f"{size:.3g} at {bar} (tolerance {TOLERANCE:g})."
            )
            findings.append(Finding(WARM_UP_CHECK, status, name, message, bar, size))
    if findings:
        return findings
    largest = max((size for size, _ in worst.values()), default=0.0)
    message = (
        f"Nothing depends on more than {history} bars: the largest change is {largest:.2g} (tolerance {TOLERANCE:g})."
    )
    return [Finding(WARM_UP_CHECK, "pass", pipeline.name, message, value=largest)]


def _compare_features(
    market: MarketTensor, short: MarketTensor, start: int, history: int, t: int
) -> list[tuple[str, float, int]]:
    """(feature, largest change in training deviations, bar) over bars t - WARM_UP_STEPS to t."""
    rows = slice(start + history, t + 1)
    short_rows = slice(history, t + 1 - start)
    changes = []
    for i, name in enumerate(market.feature_names):
        a = market.raw_features[rows, :, i].double().numpy()
        b = short.raw_features[short_rows, :, i].double().numpy()
        change = np.abs(a - b) / market.normaliser.std[i]
        # Undefined in one and defined in the other: not warmed up yet.
        change = np.where(np.isnan(a) & np.isnan(b), 0.0, np.where(np.isnan(change), np.inf, change))
        bar = int(change.max(1).argmax())
        changes.append((f"feature {name}", float(change.max()), start + history + bar))
    return changes


def _compare_decisions(
    pipeline: Pipeline,
    whole_run: tuple[Panel, MarketTensor],
    short_run: tuple[Panel, MarketTensor],
    start: int,
    history: int,
    t: int,
) -> list[tuple[str, float, int]]:
    """(strategy, largest change of its weights, bar) over bars t - WARM_UP_STEPS to t; both accounts start in cash."""
    if not pipeline.strategies:
        return []
    name, ensemble = next(iter(pipeline.strategies.items()))
    first = start + history
    account = (pipeline.rules, pipeline.cash)
    a = record_decisions(ensemble, whole_run[0], MarketPeriod(whole_run[1], first, t + 1, *account))
    b = record_decisions(ensemble, short_run[0], MarketPeriod(short_run[1], history, t + 1 - start, *account))
    sizes = [decision_difference(x, y) for x, y in zip(a, b, strict=True)]
    return [(f"strategy {name}", max(sizes), first + sizes.index(max(sizes)))]
