"""Contract of every strategy: no look-ahead, valid weights, deterministic decisions."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np
import pytest
from finrl_pod_strategies.baselines import BASELINES, index_panel, make_baseline

from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.protocols import Strategy
from finrl_pod.types import Benchmark, Panel, Positions, Window

pytestmark = pytest.mark.slow

BARS, FIRST, LAST = 600, 510, 590
RULES = ExecutionRules(0.001)


def random_panel(seed: int = 0) -> Panel:
    """Four assets on weekdays, of which one starts late, one ends early and one has gaps, and an index."""
    rng = np.random.default_rng(seed)
    close = 40 * np.exp(np.cumsum(rng.normal(0.0005, 0.015, (BARS, 4)), 0))
    close[:200, 1] = np.nan
    close[550:, 2] = np.nan
    close[rng.integers(0, BARS, 12), 3] = np.nan
    start = np.datetime64("2015-01-01")
    times = np.busday_offset(start, np.arange(BARS), roll="forward").astype("datetime64[ns]")
    index = 2000 * np.exp(np.cumsum(rng.normal(0.0003, 0.01, BARS)))
    return Panel(times, ("A", "B", "C", "D"), close, np.isfinite(close), benchmark=Benchmark("index", index, True))


def with_other_future(panel: Panel, t: int, seed: int = 1) -> Panel:
    """Return the panel with different prices after bar t."""
    rng = np.random.default_rng(seed)
    close, tradable = panel.close.copy(), panel.tradable.copy()
    close[t + 1 :] *= rng.uniform(0.5, 2.0, close[t + 1 :].shape)
    tradable[t + 1 :] &= rng.random(close[t + 1 :].shape) > 0.2
    assert panel.benchmark is not None
    index = panel.benchmark.close.copy()
    index[t + 1 :] *= rng.uniform(0.5, 2.0, BARS - t - 1)
    close[~tradable] = np.nan
    return replace(panel, close=close, tradable=tradable, benchmark=replace(panel.benchmark, close=index))


@dataclass
class RecordingStrategy:
    """Delegates to a strategy, records its decisions, and zeroes its inputs after each call."""

    inner: Strategy
    decisions: list[np.ndarray | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name, self.feature_names = self.inner.name, self.inner.feature_names

    def target_weights(self, window: Window, positions: Positions) -> np.ndarray | None:
        before = [value.copy() for value in arrays(window, positions)]
        weights = self.inner.target_weights(window, positions)
        for old, new in zip(before, arrays(window, positions), strict=True):
            np.testing.assert_array_equal(old, new)  # strategies must not modify their inputs
            new[...] = np.zeros((), new.dtype)
        self.decisions.append(None if weights is None else weights.copy())
        return weights


def arrays(*records: object) -> list[np.ndarray]:
    values = (getattr(record, entry.name) for record in records for entry in fields(record))
    return [value for value in values if isinstance(value, np.ndarray)]


def decisions(name: str, panel: Panel) -> list[np.ndarray | None]:
    panel = index_panel(panel) if name == "index" else panel
    recorder = RecordingStrategy(make_baseline(name))
    backtest(recorder, panel, MarketPeriod(build_market(panel, (), (0, 400)), FIRST, LAST, RULES, 1e5))
    return recorder.decisions


def month_start(panel: Panel) -> int:
    """Return the first bar of a month well inside the run, where monthly strategies decide."""
    months = panel.times.astype("datetime64[M]")
    return next(t for t in range(FIRST + 30, LAST - 25) if months[t] != months[t - 1])


@pytest.mark.parametrize("offset", [0, -1])
@pytest.mark.parametrize("name", BASELINES)
def test_decisions_do_not_depend_on_later_bars(name, offset):
    # The future changes right after (0) or right before (-1) a decision; the latter detects windows one bar too long.
    panel = random_panel()
    cut = month_start(panel) + offset
    one, other = decisions(name, panel), decisions(name, with_other_future(panel, cut))
    for t, (a, b) in enumerate(zip(one, other, strict=True), start=FIRST):
        if t <= cut:
            assert (a is None) == (b is None), t
            np.testing.assert_array_equal(a, b, err_msg=str(t))
    if name not in ("index", "equal_weight_buy_and_hold"):  # these decide only at the first bar
        assert any(a is not None and not np.array_equal(a, b) for a, b in zip(one, other, strict=True)), "same future"


@pytest.mark.parametrize("name", BASELINES)
def test_decisions_are_deterministic_and_valid_weights(name):
    panel = random_panel(5)
    one, repeated = decisions(name, panel), decisions(name, panel)
    weights_list = [weights for weights in one if weights is not None]
    assert weights_list
    for a, b in zip(one, repeated, strict=True):
        np.testing.assert_array_equal(a, b)
    for weights in weights_list:
        assert (weights >= 0).all()
        assert weights.sum() <= 1 + 1e-9


@pytest.mark.parametrize("name", BASELINES)
def test_declared_lookback_is_sufficient(name):
    panel = index_panel(random_panel()) if name == "index" else random_panel()
    market = build_market(panel, (), (0, 400))
    short = backtest(make_baseline(name), panel, MarketPeriod(market, FIRST, LAST, RULES, 1e5))
    full = backtest(
        RecordingStrategy(make_baseline(name)), panel, MarketPeriod(market, FIRST, LAST, RULES, 1e5)
    )  # without a lookback: all bars
    np.testing.assert_allclose(short.equity, full.equity, rtol=1e-12)
