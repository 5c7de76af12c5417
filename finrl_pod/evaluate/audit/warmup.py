"""Warm-up: what is decided must not hang on history older than what is stated, or a live start decides otherwise."""

from __future__ import annotations

import numpy as np

from finrl_pod.errors import FeatureError
from finrl_pod.evaluate.audit.lookahead import probe_bars
from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline, cut, decisions, difference
from finrl_pod.types import Floats, MarketTensor, Panel

CHECK = "warm-up"
WARM_UP = 756  # bars; the longest built-in window is 504, and exponential averages never forget wholly
TOLERANCE = 0.01  # of a feature: its training deviations; of a decision: sum of absolute differences of weights
STEPS = 22  # decisions compared, so that a monthly strategy acts in between


def warm_up(pipeline: Pipeline, bars: int = WARM_UP, probes: int = 6) -> list[Finding]:
    """Features and decisions with all of history, and with the last `bars` bars of it alone.

    Where the data before the probed bars is shorter than `bars`, all of it but a tenth is left out instead.
    """
    whole = pipeline.prepare(pipeline.panel)
    market = pipeline.build(whole)
    worst: dict[str, tuple[float, int]] = {}
    kept = bars
    for t in probe_bars(pipeline, probes):
        kept = min(kept, int(0.9 * (t - STEPS)))
        start = t - STEPS - kept
        part = pipeline.prepare(cut(pipeline.panel, start, min(t + 2, len(pipeline.panel.times))))
        try:
            alone = pipeline.build(part)
        except FeatureError as error:
            text = f"{kept} bars of history are too few: {error}."
            return [Finding(CHECK, "fail", "features", text, pipeline.bar(t))]
        for part_name, size, row in (
            *_features(market, alone, start, kept, t),
            *_decisions(pipeline, (whole, market), (part, alone), start, kept, t),
        ):
            if part_name not in worst or size > worst[part_name][0]:
                worst[part_name] = (size, row)
    found = [_finding(pipeline, part, *at, kept) for part, at in worst.items() if at[0] > TOLERANCE]
    if found:
        return found
    largest = max((size for size, _ in worst.values()), default=0.0)
    text = f"Beyond {kept} bars of history nothing moves by more than {largest:.2g} (the tolerance is {TOLERANCE:g})."
    return [Finding(CHECK, "pass", pipeline.name, text, value=largest)]


def _finding(pipeline: Pipeline, part: str, size: float, t: int, kept: int) -> Finding:
    bar = pipeline.bar(t)
    message = (
        f"{part} depends on history older than the stated {kept} bars: without it, it moves by {size:.3g} at {bar} "
        f"(the tolerance is {TOLERANCE:g})."
    )
    return Finding(CHECK, "fail", part, message, bar, size)


def _features(market: MarketTensor, alone: MarketTensor, start: int, kept: int, t: int) -> list[tuple[str, float, int]]:
    """(feature, largest move in training deviations, bar) over bars t - STEPS to t."""
    rows, own = slice(start + kept, t + 1), slice(kept, t + 1 - start)
    found = []
    for i, name in enumerate(market.feature_names):
        a = market.raw_features[rows, :, i].double().numpy()
        b = alone.raw_features[own, :, i].double().numpy()
        moved = np.abs(a - b) / market.normaliser.std[i]
        # What is undefined in one and defined in the other has not warmed up yet.
        moved = np.where(np.isnan(a) & np.isnan(b), 0.0, np.where(np.isnan(moved), np.inf, moved))
        bar = int(moved.max(1).argmax())
        found.append((f"feature {name}", float(moved.max()), start + kept + bar))
    return found


def _decisions(
    pipeline: Pipeline,
    whole: tuple[Panel, MarketTensor],
    alone: tuple[Panel, MarketTensor],
    start: int,
    kept: int,
    t: int,
) -> list[tuple[str, float, int]]:
    """(strategy, largest move of its weights, bar) over bars t - STEPS to t, from cash in both."""
    found = []
    for name, strategy in list(pipeline.strategies.items())[:1]:  # the whole
        first = start + kept
        terms = (pipeline.rules, pipeline.cash)
        a = decisions(strategy, *whole, first, t + 1, *terms)
        b = decisions(strategy, *alone, kept, t + 1 - start, *terms)
        sizes: Floats = np.array([difference(x, y) for x, y in zip(a, b, strict=True)])
        bar = int(sizes.argmax())
        found.append((f"strategy {name}", float(sizes[bar]), first + bar))
    return found
