"""What is audited: the way from prices to decisions with everything fitted frozen, and the findings of its checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from finrl_pod.data.dates import stamp
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.variations import RecordingStrategy
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.protocols import Strategy, VecEnv
from finrl_pod.types import Floats, MarketTensor, Panel

Status = Literal["pass", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """check: look-ahead, leakage, warm-up, fills, data, sensitivity or determinism. status: "fail" makes results
    worthless, "warn" deserves doubt. part: the feature or step that it is about. bar: the first one (ISO) where the
    fault appears. message: one sentence. value: the figure in it, where there is one.
    """

    check: str
    status: Status
    part: str
    message: str
    bar: str | None = None
    value: float | None = None


def clean(findings: Iterable[Finding]) -> bool:
    """No finding is a failure."""
    return not any(finding.status == "fail" for finding in findings)


def as_it_is(panel: Panel) -> Panel:
    """Preparation that leaves prices alone."""
    return panel


@dataclass(frozen=True, eq=False)
class Pipeline:
    """How prices become decisions.

    prepare: what is done to prices before features are computed. build: prepared prices -> market, with the fitted
    normaliser frozen. strategies: by name, the whole before its members; may be empty. make_env(market, first, last)
    gives an environment whose decisions lie on bars first to last; None where none belongs to the subject. settled:
    first bar after training; decisions are probed from here to the last bar.
    """

    name: str
    panel: Panel
    build: Callable[[Panel], MarketTensor]
    rules: ExecutionRules
    cash: float
    settled: int
    strategies: Mapping[str, Strategy] = field(default_factory=dict)
    make_env: Callable[[MarketTensor, int, int], VecEnv] | None = None
    prepare: Callable[[Panel], Panel] = as_it_is

    def bar(self, t: int) -> str:
        """The time of a bar of the panel, as messages write it."""
        return stamp(self.panel.times[t], self.panel.bar)


@runtime_checkable
class Recreatable(Protocol):
    """A strategy that may remember what it saw."""

    def again(self) -> Strategy:
        """A new one, with the same settings."""
        ...


def fresh_copy(strategy: Strategy) -> Strategy:
    """The strategy as it begins: what it saw on other bars must not tell on these."""
    return strategy.again() if isinstance(strategy, Recreatable) else strategy


def decisions(
    strategy: Strategy, panel: Panel, market: MarketTensor, first: int, last: int, rules: ExecutionRules, cash: float
) -> list[Floats | None]:
    """What a strategy decides at bars first to last - 1, led through the engine from cash; one that remembers is made
    anew for it."""
    recorded = RecordingStrategy(fresh_copy(strategy))
    backtest(recorded, panel, market, first, last, rules, cash)
    return recorded.decisions


def difference(a: Floats | None, b: Floats | None) -> float:
    """Sum of absolute differences of two decisions; infinite where only one of them leaves the account alone."""
    if a is None or b is None:
        return 0.0 if a is b else float("inf")
    total = float(np.abs(a - b).sum())
    return total if np.isfinite(total) else float("inf")


def cut(panel: Panel, first: int, stop: int) -> Panel:
    """Bars first to stop - 1, as they are."""
    return _rows(panel, np.arange(first, stop))


def permuted(panel: Panel, t: int, seed: int) -> Panel:
    """The bars after t in another order, at the same times."""
    later = np.random.default_rng(seed).permutation(np.arange(t + 1, len(panel.times)))
    moved = _rows(panel, np.concatenate([np.arange(t + 1), later]))
    return dataclasses.replace(moved, times=panel.times.copy())


def perturbed(panel: Panel, t: int, seed: int, volatility: float = 0.05) -> Panel:
    """Other prices and volumes after t: each ticker's go on along a random walk of their own."""
    rng = np.random.default_rng(seed)
    bars, assets = panel.close.shape
    walk = np.ones((bars, assets + 2))
    walk[t + 1 :] = np.exp(np.cumsum(rng.normal(0, volatility, (bars - t - 1, assets + 2)), 0))
    changed: dict[str, Any] = {
        c: getattr(panel, c) * (walk[:, -2:-1] if c == "volume" else walk[:, :assets]) for c in panel.columns
    }
    benchmark = panel.benchmark
    if benchmark is not None:
        benchmark = dataclasses.replace(benchmark, close=benchmark.close * walk[:, -1])
    return dataclasses.replace(panel, benchmark=benchmark, **changed)


def tradable_everywhere(panel: Panel, t: int) -> bool:
    """Every ticker that lives around t has a bar at t: a drop after t cuts through no gap."""
    alive = np.asarray(panel.tradable[: t + 1].any(0) & panel.tradable[t:].any(0))
    return bool(panel.tradable[t][alive].all())


def _rows(panel: Panel, rows: np.ndarray) -> Panel:
    benchmark = panel.benchmark
    if benchmark is not None:
        benchmark = dataclasses.replace(benchmark, close=benchmark.close[rows].copy())
    columns = {c: getattr(panel, c)[rows].copy() for c in panel.columns}
    return dataclasses.replace(
        panel, times=panel.times[rows].copy(), tradable=panel.tradable[rows].copy(), benchmark=benchmark, **columns
    )
