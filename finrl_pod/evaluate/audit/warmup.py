"""Check warm-up: features and decisions must not depend on more history than stated, or a live start would differ."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from finrl_pod.errors import FeatureError
from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline, decision_difference, record_decisions
from finrl_pod.evaluate.audit.probes import cut, decision_bars
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.types import MarketTensor, Panel

CHECK = "warm-up"
WARM_UP = 756  # bars; the longest built-in window is 504, and exponential averages have an infinite memory
TOLERANCE = 0.01  # features: training deviations; decisions: sum of absolute differences of weights
STEPS = 22  # decisions compared, so that monthly strategies act


def check_warm_up(
    pipeline: Pipeline, bars: int = WARM_UP, probes: int = 6, ignored_names: Set[str] = frozenset()
) -> list[Finding]:
    """Compare features and decisions computed from the whole history with those from the last `bars` bars.

    If fewer than `bars` bars lie before a probed bar, nine tenths of them are used. ignored_names: parts that are not
    deterministic.
    """
    whole_panel = pipeline.prepare_panel(pipeline.panel)
    market = pipeline.build(whole_panel)
    worst: dict[str, tuple[float, int]] = {}
    history = bars
    for t in decision_bars(pipeline, probes):
        history = min(history, int(0.9 * (t - STEPS)))
        start = t - STEPS - history
        cut_panel = pipeline.prepare_panel(cut(pipeline.panel, start, min(t + 2, len(pipeline.panel.times))))
        try:
            short = pipeline.build(cut_panel)
        except FeatureError as error:
            message = f"{history} bars of history are too few: {error}."
            return [Finding(CHECK, "fail", "features", message, pipeline.bar(t))]
        for name, size, row in (
            *_compare_features(market, short, start, history, t),
            *_compare_decisions(pipeline, (whole_panel, market), (cut_panel, short), start, history, t),
        ):
            if name not in ignored_names and (name not in worst or size > worst[name][0]):
                worst[name] = (size, row)
    findings = [_failure(pipeline, name, *change, history) for name, change in worst.items() if change[0] > TOLERANCE]
    if findings:
        return findings
    largest = max((size for size, _ in worst.values()), default=0.0)
    message = (
        f"Nothing depends on more than {history} bars: the largest change is {largest:.2g} (tolerance {TOLERANCE:g})."
    )
    return [Finding(CHECK, "pass", pipeline.name, message, value=largest)]


def _failure(pipeline: Pipeline, name: str, size: float, t: int, history: int) -> Finding:
    bar = pipeline.bar(t)
    message = (
        f"{name} depends on more than the stated {history} bars of history: without older bars it changes by "
        f"{size:.3g} at {bar} (tolerance {TOLERANCE:g})."
    )
    return Finding(CHECK, "fail", name, message, bar, size)


def _compare_features(
    market: MarketTensor, short: MarketTensor, start: int, history: int, t: int
) -> list[tuple[str, float, int]]:
    """(feature, largest change in training deviations, bar) over bars t - STEPS to t."""
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
    """(strategy, largest change of its weights, bar) over bars t - STEPS to t; both accounts start in cash."""
    if not pipeline.strategies:
        return []
    name, ensemble = next(iter(pipeline.strategies.items()))
    first = start + history
    account = (pipeline.rules, pipeline.cash)
    a = record_decisions(ensemble, whole_run[0], MarketPeriod(whole_run[1], first, t + 1, *account))
    b = record_decisions(ensemble, short_run[0], MarketPeriod(short_run[1], history, t + 1 - start, *account))
    sizes = [decision_difference(x, y) for x, y in zip(a, b, strict=True)]
    return [(f"strategy {name}", max(sizes), first + sizes.index(max(sizes)))]
