"""Check warm-up: features and decisions must not depend on more history than stated, or a live start would differ."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from finrl_pod.errors import FeatureError
from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline, decision_difference, record_decisions
from finrl_pod.evaluate.audit.probes import cut, decision_bars
from finrl_pod.types import Floats, MarketTensor, Panel

CHECK = "warm-up"
WARM_UP = 756  # bars; the longest built-in window is 504, and exponential averages have an infinite memory
TOLERANCE = 0.01  # features: training deviations; decisions: sum of absolute differences of weights
STEPS = 22  # decisions compared, so that monthly strategies act


def check_warm_up(
    pipeline: Pipeline, bars: int = WARM_UP, probes: int = 6, ignored: Set[str] = frozenset()
) -> list[Finding]:
    """Compare features and decisions computed from the whole history with those from the last `bars` bars.

    If fewer than `bars` bars lie before a probed bar, nine tenths of them are used. ignored: parts that are not
    deterministic.
    """
    whole = pipeline.prepared(pipeline.panel)
    market = pipeline.build(whole)
    worst: dict[str, tuple[float, int]] = {}
    kept = bars
    for t in decision_bars(pipeline, probes):
        kept = min(kept, int(0.9 * (t - STEPS)))
        start = t - STEPS - kept
        part = pipeline.prepared(cut(pipeline.panel, start, min(t + 2, len(pipeline.panel.times))))
        try:
            short = pipeline.build(part)
        except FeatureError as error:
            message = f"{kept} bars of history are too few: {error}."
            return [Finding(CHECK, "fail", "features", message, pipeline.bar(t))]
        for name, size, row in (
            *_compare_features(market, short, start, kept, t),
            *_compare_decisions(pipeline, (whole, market), (part, short), start, kept, t),
        ):
            if name not in ignored and (name not in worst or size > worst[name][0]):
                worst[name] = (size, row)
    found = [_failure(pipeline, part, size, t, kept) for part, (size, t) in worst.items() if size > TOLERANCE]
    if found:
        return found
    largest = max((size for size, _ in worst.values()), default=0.0)
    message = (
        f"Nothing depends on more than {kept} bars: the largest change is {largest:.2g} (tolerance {TOLERANCE:g})."
    )
    return [Finding(CHECK, "pass", pipeline.name, message, value=largest)]


def _failure(pipeline: Pipeline, part: str, size: float, t: int, kept: int) -> Finding:
    bar = pipeline.bar(t)
    message = (
        f"{part} depends on more than the stated {kept} bars of history: without older bars it changes by {size:.3g} "
        f"at {bar} (tolerance {TOLERANCE:g})."
    )
    return Finding(CHECK, "fail", part, message, bar, size)


def _compare_features(
    market: MarketTensor, short: MarketTensor, start: int, kept: int, t: int
) -> list[tuple[str, float, int]]:
    """(feature, largest change in training deviations, bar) over bars t - STEPS to t."""
    rows, own = slice(start + kept, t + 1), slice(kept, t + 1 - start)
    found = []
    for i, name in enumerate(market.feature_names):
        a = market.raw_features[rows, :, i].double().numpy()
        b = short.raw_features[own, :, i].double().numpy()
        moved = np.abs(a - b) / market.normaliser.std[i]
        # Undefined in one and defined in the other: not warmed up yet.
        moved = np.where(np.isnan(a) & np.isnan(b), 0.0, np.where(np.isnan(moved), np.inf, moved))
        bar = int(moved.max(1).argmax())
        found.append((f"feature {name}", float(moved.max()), start + kept + bar))
    return found


def _compare_decisions(
    pipeline: Pipeline,
    whole: tuple[Panel, MarketTensor],
    short: tuple[Panel, MarketTensor],
    start: int,
    kept: int,
    t: int,
) -> list[tuple[str, float, int]]:
    """(strategy, largest change of its weights, bar) over bars t - STEPS to t; both accounts start in cash."""
    found = []
    for name, strategy in list(pipeline.strategies.items())[:1]:  # the ensemble
        first = start + kept
        terms = (pipeline.rules, pipeline.cash)
        a = record_decisions(strategy, *whole, first, t + 1, *terms)
        b = record_decisions(strategy, *short, kept, t + 1 - start, *terms)
        sizes: Floats = np.array([decision_difference(x, y) for x, y in zip(a, b, strict=True)])
        bar = int(sizes.argmax())
        found.append((f"strategy {name}", float(sizes[bar]), first + bar))
    return found
