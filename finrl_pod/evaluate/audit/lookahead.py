"""Look-ahead: what comes after a bar is changed, and nothing decided at or before it may move.

The bars after t are perturbed, permuted and dropped, for many t after the training. The chain is compared stage by
stage, from prices to decisions, and the first stage that moves is the one at fault: the later ones only pass it on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.evaluate.audit.pipeline import (
    Finding,
    Pipeline,
    cut,
    decisions,
    difference,
    permuted,
    perturbed,
    tradable_everywhere,
)
from finrl_pod.evaluate.audit.rollout import Shown, first_difference, rollout
from finrl_pod.types import Floats, MarketTensor, Panel

CHECK = "look-ahead"
PROBES = 12
HISTORY, AHEAD = 700, 260  # bars before and after t that a probe computes on
STEPS = 24  # decisions that lead up to t
TOLERANCE = 1e-5  # of values, relative; a leak moves them by per cents
WEIGHT_TOLERANCE = 1e-4  # sum of absolute differences of weights: policies compute in float32

Fault = tuple[str, str, int, str]  # stage, part, bar of the panel, by which change
Moved = Iterator[tuple[str, int]]  # part, row


class Made:
    """Prices as prepared, the market made of them, and what ran on it; each is made once."""

    def __init__(self, pipeline: Pipeline, panel: Panel) -> None:
        self.panel = pipeline.prepare(panel)
        self.market: MarketTensor = pipeline.build(self.panel)
        self._led: dict[str, list[Floats | None]] = {}
        self._shown: dict[tuple[int, int], list[Shown]] = {}

    def led(self, pipeline: Pipeline, name: str, first: int, k: int) -> list[Floats | None]:
        """Decisions of a strategy from bar `first` to k, as far as they can fill, through the engine."""
        if name not in self._led:
            span = first, min(k + 1, len(self.panel.times) - 1)
            terms = (pipeline.rules, pipeline.cash)
            self._led[name] = decisions(pipeline.strategies[name], self.panel, self.market, *span, *terms)
        return self._led[name]

    def shown(self, pipeline: Pipeline, first: int, last: int) -> list[Shown]:
        """What the environment shows while it decides on bars first to last."""
        if (first, last) not in self._shown and pipeline.make_env is not None:
            self._shown[first, last] = rollout(pipeline.make_env(self.market, first, last), STEPS)
        return self._shown[first, last]


def lookahead(pipeline: Pipeline, probes: int = PROBES, seed: int = 0) -> list[Finding]:
    """One finding a part that sees the future, with its first bar; one "pass" where there is none."""
    bars = probe_bars(pipeline, probes)
    first: dict[tuple[str, str], Fault] = {}
    for t in bars:
        for fault in _faults_at(pipeline, t, seed):
            key = fault[:2]
            if key not in first or fault[2] < first[key][2]:
                first[key] = fault
    if first:
        return [_finding(pipeline, fault) for fault in first.values()]
    stages = ["prices", "features", "market"]
    stages += ["environment"] if pipeline.make_env else []
    stages += ["decisions"] if pipeline.strategies else []
    what = f"{', '.join(stages[:-1])} and {stages[-1]} up to a bar stay as they are when later bars change"
    return [Finding(CHECK, "pass", pipeline.name, f"{what}, tried at {len(bars)} bars in 3 ways.", value=len(bars))]


def probe_bars(pipeline: Pipeline, probes: int) -> list[int]:
    """Bars spread from the end of training to the last bar but one, none of them within a gap of a ticker."""
    low = max(pipeline.settled, STEPS + 2)
    high = len(pipeline.panel.times) - 2
    wanted = np.unique(np.linspace(low, high, max(probes, 1)).round().astype(int))
    found = []
    for t in wanted:
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
    base = Made(pipeline, part)
    for name in pipeline.strategies:  # before any other market is made, which a strategy might get hold of
        base.led(pipeline, name, max(k - STEPS, 0), k)
    for how, change in changes.items():
        other = Made(pipeline, change())
        for stage, compare in _STAGES.items():
            moved = list(compare(pipeline, base, other, k))
            yield from ((stage, piece, start + row, how) for piece, row in moved)
            if moved:
                break


def _finding(pipeline: Pipeline, fault: Fault) -> Finding:
    stage, part, t, how = fault
    bar = pipeline.bar(t)
    message = f"{part} ({stage}) sees the future: what it says at {bar} changes with {how}."
    return Finding(CHECK, "fail", part, message, bar)


def _prices(_: Pipeline, base: Made, other: Made, k: int) -> Moved:
    """What the preparation of prices made of the bars up to k."""
    for column in (*base.panel.columns, "tradable"):
        a, b = getattr(base.panel, column), getattr(other.panel, column)
        yield from _moved(f"the preparation of {column}", a[: k + 1], b[: k + 1])


def _features(_: Pipeline, base: Made, other: Made, k: int) -> Moved:
    """Features as they are computed; where these hold still, as they are normalised."""
    a, b = base.market, other.market
    raw = [
        fault
        for i, name in enumerate(a.feature_names)
        for fault in _moved(f"feature {name}", a.raw_features[: k + 1, :, i], b.raw_features[: k + 1, :, i])
    ]
    yield from raw
    for i, name in enumerate(a.feature_names if not raw else ()):
        yield from _moved(f"the normaliser of {name}", a.features[: k + 1, :, i], b.features[: k + 1, :, i])


def _market(_: Pipeline, base: Made, other: Made, k: int) -> Moved:
    """Closes, what is tradable, turbulence up to k; fills of the decisions up to k - 1."""
    a, b = base.market, other.market
    yield from _moved("the closing price for valuation", a.close[: k + 1], b.close[: k + 1])
    yield from _moved("the mask of what is tradable", a.tradable[: k + 1], b.tradable[: k + 1])
    if a.turbulence is not None and b.turbulence is not None:
        yield from _moved("turbulence", a.turbulence[: k + 1], b.turbulence[: k + 1])
    yield from _moved("the fill price", a.fill[:k], b.fill[:k])
    yield from _moved("the mask of what fills", a.fillable[:k], b.fillable[:k])


def _environment(pipeline: Pipeline, base: Made, other: Made, k: int) -> Moved:
    """Two environments on the bars before k, led by the same actions from the same seed."""
    first, last = max(k - STEPS, base.market.first), min(k, other.market.steps - 1)
    if pipeline.make_env is None or first > last:
        return
    a, b = (made.shown(pipeline, first, last) for made in (base, other))
    found = first_difference(a, b, TOLERANCE, known=k)
    if found is not None:
        name, day = found
        yield f"the environment's {name}", day


def _decisions(pipeline: Pipeline, base: Made, other: Made, k: int) -> Moved:
    """The whole; where it moves its members too, for then they are at fault and it only passes on what they did."""
    first = max(k - STEPS, 0)
    if not pipeline.strategies:
        return
    whole, *members = pipeline.strategies
    row = _first_other_decision(pipeline, whole, base, other, first, k)
    if row is None:
        return
    rows = {name: _first_other_decision(pipeline, name, base, other, first, k) for name in members}
    faulty = {name: row for name, row in rows.items() if row is not None} or {whole: row}
    yield from ((f"strategy {name}", first + row) for name, row in faulty.items())


def _first_other_decision(pipeline: Pipeline, name: str, base: Made, other: Made, first: int, k: int) -> int | None:
    a, b = (made.led(pipeline, name, first, k) for made in (base, other))
    # With no bar after k nothing that is decided at k can fill: there is one decision less.
    moved = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if difference(x, y) > WEIGHT_TOLERANCE]
    return moved[0] if moved else None


_STAGES: dict[str, Callable[[Pipeline, Made, Made, int], Moved]] = {
    "prices": _prices,
    "features": _features,
    "market": _market,
    "environment": _environment,
    "decisions": _decisions,
}


def _moved(part: str, a: ArrayLike, b: ArrayLike) -> Moved:
    """(part, the first row in which two arrays [T, ...] differ), where they do."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape != y.shape:
        yield part, 0
        return
    same = np.isclose(x, y, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True).reshape(len(x), -1).all(1)
    if not same.all():
        yield part, int(np.argmin(same))
