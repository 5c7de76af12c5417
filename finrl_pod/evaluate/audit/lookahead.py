"""Check look-ahead: change the bars after t; nothing computed or decided up to t may change.

For many t after training, later bars are perturbed, permuted and dropped. The pipeline is compared stage by stage, from
prices to decisions. The first stage that changes is at fault; later stages only pass the change on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.data.flaws import MAX_SPREAD
from finrl_pod.evaluate.audit.pipeline import (
    Finding,
    Pipeline,
    RolloutStep,
    decision_difference,
    first_difference,
    record_decisions,
    rollout,
)
from finrl_pod.types import Floats, MarketTensor, Panel

CHECK = "look-ahead"
PROBES = 12
HISTORY, AHEAD = 700, 260  # bars before and after t that a probe computes on
STEPS = 24  # decisions that lead up to t
TOLERANCE = 1e-5  # relative; a leak changes values by per cents
DECISION_TOLERANCE = 1e-4  # sum of absolute differences of weights: policies compute in float32

Fault = tuple[str, str, int, str]  # stage, part, bar of the panel, kind of change
Changes = Iterator[tuple[str, int]]  # part, row


class PipelineRun:
    """One run of the pipeline on a panel: prepared prices, market, and decisions and rollouts, each computed once."""

    def __init__(self, pipeline: Pipeline, panel: Panel) -> None:
        self.pipeline = pipeline
        self.panel = pipeline.prepare(panel)
        self.market: MarketTensor = pipeline.build(self.panel)
        self._decisions: dict[str, list[Floats | None]] = {}
        self._rollouts: dict[tuple[int, int], list[RolloutStep]] = {}

    def decisions(self, name: str, first: int, k: int) -> list[Floats | None]:
        """Decisions of a strategy at the bars from `first` to k that can fill."""
        if name not in self._decisions:
            strategy = self.pipeline.strategies[name]
            span = first, min(k + 1, len(self.panel.times) - 1)
            terms = (self.pipeline.rules, self.pipeline.cash)
            self._decisions[name] = record_decisions(strategy, self.panel, self.market, *span, *terms)
        return self._decisions[name]

    def rollout(self, first: int, last: int) -> list[RolloutStep]:
        """Rollout of an environment whose decisions lie on bars first to last."""
        if (first, last) not in self._rollouts and self.pipeline.make_env is not None:
            self._rollouts[first, last] = rollout(self.pipeline.make_env(self.market, first, last), STEPS)
        return self._rollouts[first, last]


def check_lookahead(pipeline: Pipeline, probes: int = PROBES, seed: int = 0) -> list[Finding]:
    """One failure for each part that depends on later bars, with its first bar; a single pass if there is none."""
    bars = probe_bars(pipeline, probes)
    first: dict[tuple[str, str], Fault] = {}
    for t in bars:
        for fault in _faults_at(pipeline, t, seed):
            key = fault[:2]
            if key not in first or fault[2] < first[key][2]:
                first[key] = fault
    if first:
        return [_failure(pipeline, fault) for fault in first.values()]
    stages = ["prices", "features", "market"]
    stages += ["environment"] if pipeline.make_env else []
    stages += ["decisions"] if pipeline.strategies else []
    message = (
        f"Changing later bars changes no {', '.join(stages[:-1])} or {stages[-1]}; probed at {len(bars)} bars in 3 "
        "ways."
    )
    return [Finding(CHECK, "pass", pipeline.name, message, value=len(bars))]


def probe_bars(pipeline: Pipeline, probes: int) -> list[int]:
    """Bars spread from the end of training to the last bar but one, none within a gap of a ticker."""
    low = max(pipeline.out_of_sample, STEPS + 2)
    high = len(pipeline.panel.times) - 2
    spaced = np.unique(np.linspace(low, high, max(probes, 1)).round().astype(int))
    found = []
    for t in spaced:
        near = [s for s in (t, *range(t - 1, max(t - 10, low) - 1, -1)) if tradable_everywhere(pipeline.panel, s)]
        found += [int(near[0])] if near else []
    return sorted(set(found))


def _faults_at(pipeline: Pipeline, t: int, seed: int) -> Iterator[Fault]:
    start = max(0, t - HISTORY)
    part = cut(pipeline.panel, start, min(len(pipeline.panel.times), t + 1 + AHEAD))
    k = t - start
    changes: dict[str, Callable[[], Panel]] = {
        "other prices after it": lambda: perturbed(part, k, seed + t),
        "the bars after it in another order": lambda: permuted(part, k, seed + t),
        "no bars after it": lambda: cut(part, 0, k + 1),
    }
    base = PipelineRun(pipeline, part)
    for name in pipeline.strategies:  # before another market exists that a strategy might get hold of
        base.decisions(name, max(k - STEPS, 0), k)
    for how, change in changes.items():
        other = PipelineRun(pipeline, change())
        for stage, compare in _STAGES.items():
            changed = list(compare(base, other, k))
            yield from ((stage, name, start + row, how) for name, row in changed)
            if changed:
                break


def _failure(pipeline: Pipeline, fault: Fault) -> Finding:
    stage, part, t, how = fault
    bar = pipeline.bar(t)
    message = f"{part} ({stage}) depends on the future: its value at {bar} changes with {how}."
    return Finding(CHECK, "fail", part, message, bar)


# ---------------------------------------------------------------------- stages


def _compare_prices(base: PipelineRun, other: PipelineRun, k: int) -> Changes:
    """Prepared prices up to k."""
    for column in (*base.panel.columns, "tradable"):
        a, b = getattr(base.panel, column), getattr(other.panel, column)
        yield from _compare_rows(f"the preparation of {column}", a[: k + 1], b[: k + 1])


def _compare_features(base: PipelineRun, other: PipelineRun, k: int) -> Changes:
    """Raw features up to k; if these are equal, normalised features."""
    a, b = base.market, other.market
    raw = [
        change
        for i, name in enumerate(a.feature_names)
        for change in _compare_rows(f"feature {name}", a.raw_features[: k + 1, :, i], b.raw_features[: k + 1, :, i])
    ]
    yield from raw
    for i, name in enumerate(a.feature_names if not raw else ()):
        yield from _compare_rows(f"the normaliser of {name}", a.features[: k + 1, :, i], b.features[: k + 1, :, i])


def _compare_markets(base: PipelineRun, other: PipelineRun, k: int) -> Changes:
    """Closes, tradability and turbulence up to k; fills and spreads of the decisions up to k - 1."""
    a, b = base.market, other.market
    yield from _compare_rows("the closing price for valuation", a.close[: k + 1], b.close[: k + 1])
    yield from _compare_rows("the mask of tradable tickers", a.tradable[: k + 1], b.tradable[: k + 1])
    if a.turbulence is not None and b.turbulence is not None:
        yield from _compare_rows("turbulence", a.turbulence[: k + 1], b.turbulence[: k + 1])
    yield from _compare_rows("the fill price", a.fill[:k], b.fill[:k])
    if a.half_spread is not None and b.half_spread is not None:
        yield from _compare_rows("the spread of fills", a.half_spread[:k], b.half_spread[:k])
    yield from _compare_rows("the mask of fillable tickers", a.fillable[:k], b.fillable[:k])


def _compare_environments(base: PipelineRun, other: PipelineRun, k: int) -> Changes:
    """Rollouts of two environments on the bars before k, with the same actions from the same seed."""
    first, last = max(k - STEPS, base.market.first), min(k, other.market.steps - 1)
    if base.pipeline.make_env is None or first > last:
        return
    found = first_difference(base.rollout(first, last), other.rollout(first, last), TOLERANCE, known=k)
    if found is not None:
        name, row = found
        yield f"the environment's {name}", row


def _compare_decisions(base: PipelineRun, other: PipelineRun, k: int) -> Changes:
    """Decisions of the ensemble; if they change, those of the members whose change it passes on."""
    first = max(k - STEPS, 0)
    if not base.pipeline.strategies:
        return
    ensemble, *members = base.pipeline.strategies
    row = _first_other_decision(ensemble, base, other, first, k)
    if row is None:
        return
    rows = {name: _first_other_decision(name, base, other, first, k) for name in members}
    faulty = {name: row for name, row in rows.items() if row is not None} or {ensemble: row}
    yield from ((f"strategy {name}", first + row) for name, row in faulty.items())


def _first_other_decision(name: str, base: PipelineRun, other: PipelineRun, first: int, k: int) -> int | None:
    a, b = (run.decisions(name, first, k) for run in (base, other))
    # Without bars after k the decision at k cannot fill: there is one decision less.
    changed = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if decision_difference(x, y) > DECISION_TOLERANCE]
    return changed[0] if changed else None


_STAGES: dict[str, Callable[[PipelineRun, PipelineRun, int], Changes]] = {
    "prices": _compare_prices,
    "features": _compare_features,
    "market": _compare_markets,
    "environment": _compare_environments,
    "decisions": _compare_decisions,
}


def _compare_rows(part: str, a: ArrayLike, b: ArrayLike) -> Changes:
    """(part, first row in which two arrays [T, ...] differ), if they do."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape != y.shape:
        yield part, 0
        return
    same = np.isclose(x, y, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True).reshape(len(x), -1).all(1)
    if not same.all():
        yield part, int(np.argmin(same))


# ---------------------------------------------------------------------- changes of a panel


def cut(panel: Panel, first: int, stop: int) -> Panel:
    """Bars first to stop - 1 of a panel."""
    return _rows(panel, np.arange(first, stop))


def permuted(panel: Panel, t: int, seed: int) -> Panel:
    """The panel with the bars after t in random order, at the same times."""
    later = np.random.default_rng(seed).permutation(np.arange(t + 1, len(panel.times)))
    moved = _rows(panel, np.concatenate([np.arange(t + 1), later]))
    return dataclasses.replace(moved, times=panel.times.copy())


def perturbed(panel: Panel, t: int, seed: int, volatility: float = 0.05) -> Panel:
    """The panel with the prices and volumes after t multiplied by a random walk for each ticker."""
    rng = np.random.default_rng(seed)
    bars, assets = panel.close.shape
    walk = np.ones((bars, assets + 2))
    walk[t + 1 :] = np.exp(np.cumsum(rng.normal(0, volatility, (bars - t - 1, assets + 2)), 0))
    changed: dict[str, Any] = {
        c: getattr(panel, c) * (walk[:, -2:-1] if c == "volume" else walk[:, :assets]) for c in panel.columns
    }
    if "spread" in changed:  # a fraction of the price
        changed["spread"] = np.minimum(changed["spread"], np.nextafter(MAX_SPREAD, 0.0))
    benchmark = panel.benchmark
    if benchmark is not None:
        benchmark = dataclasses.replace(benchmark, close=benchmark.close * walk[:, -1])
    return dataclasses.replace(panel, benchmark=benchmark, **changed)


def tradable_everywhere(panel: Panel, t: int) -> bool:
    """Whether every ticker listed around t has a bar at t, so that dropping later bars cuts through no gap."""
    listed = np.asarray(panel.tradable[: t + 1].any(0) & panel.tradable[t:].any(0))
    return bool(panel.tradable[t][listed].all())


def _rows(panel: Panel, rows: np.ndarray) -> Panel:
    benchmark = panel.benchmark
    if benchmark is not None:
        benchmark = dataclasses.replace(benchmark, close=benchmark.close[rows].copy())
    columns = {c: getattr(panel, c)[rows].copy() for c in panel.columns}
    return dataclasses.replace(
        panel, times=panel.times[rows].copy(), tradable=panel.tradable[rows].copy(), benchmark=benchmark, **columns
    )
