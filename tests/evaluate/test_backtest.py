"""The arguments of a strategy in a backtest: no future data, and changes to them have no effect."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, fields, replace

import numpy as np
import pytest
import torch

from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import backtest, window_at
from finrl_pod.evaluate.metrics import METRIC_NAMES
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.types import Benchmark, Positions, Window

RULES = ExecutionRules(0.001)
FEATURES = ("return_1", "return_5")


def prices(seed: int = 0, bars: int = 40, assets: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 50 * np.exp(np.cumsum(rng.normal(0, 0.02, (bars, assets)), 0))


@dataclass
class Recorder:
    """Weight assets by their last return, and record the arguments of every call."""

    name: str = "recorder"
    feature_names: tuple[str, ...] = ()
    calls: list[tuple[Window, Positions]] = field(default_factory=list)
    overwrite: bool = False

    def target_weights(self, window, positions):
        self.calls.append((window, positions))
        recent = window.close[-2:] if len(window.close) > 1 else np.ones((2, len(window.symbols)))
        score = np.nan_to_num(recent[-1] / recent[-2])
        weights = score / score.sum()
        if self.overwrite:
            for record in (window, positions):
                for entry in fields(record):
                    value = getattr(record, entry.name)
                    if isinstance(value, np.ndarray):
                        value[...] = np.zeros((), value.dtype)
        return weights


class ShortRecorder(Recorder):
    """A recorder with a lookback of three bars."""

    lookback = 3


def test_window_starts_at_the_first_bar_and_ends_at_the_decision(market_of):
    close = prices()
    close[7:9, 1] = np.nan
    panel, market = market_of(close)
    panel = replace(panel, benchmark=Benchmark("index", np.arange(1.0, 41.0), True))
    strategy = Recorder()
    backtest(strategy, panel, MarketPeriod(market, 5, 20, RULES, 1000.0))
    assert [len(window.times) for window, _ in strategy.calls] == list(range(6, 21))
    window, positions = strategy.calls[3]
    np.testing.assert_array_equal(window.close, close[:9])
    assert window.benchmark is not None
    assert window.benchmark[-1] == 9.0
    assert window.times[-1] == panel.times[8]
    assert window.open is None
    assert window.features is None
    assert positions.weights.sum() + positions.cash == pytest.approx(1.0)


def test_positions_at_the_decision_equal_the_result(market_of):
    panel, market = market_of(prices())
    strategy = Recorder()
    result = backtest(strategy, panel, MarketPeriod(market, 5, 20, RULES, 1000.0))
    for i, (_, positions) in enumerate(strategy.calls):
        assert positions.equity == pytest.approx(result.equity[i])
        np.testing.assert_allclose(positions.weights, result.weights[i], atol=1e-15)


def test_lookback_shortens_the_window_and_changes_no_result(market_of):
    panel, market = market_of(prices())
    short, full = ShortRecorder(), Recorder()
    a = backtest(short, panel, MarketPeriod(market, 1, 30, RULES, 1000.0))
    b = backtest(full, panel, MarketPeriod(market, 1, 30, RULES, 1000.0))
    assert {len(window.times) for window, _ in short.calls} == {2, 3}
    assert {len(window.tradable) for window, _ in short.calls} == {2, 3}
    np.testing.assert_array_equal(a.equity, b.equity)


def test_features_are_raw_and_selected_by_name(market_of):
    panel, market = market_of(prices(), features=FEATURES)
    strategy = Recorder(feature_names=("return_5", "return_1"))
    backtest(strategy, panel, MarketPeriod(market, 10, 20, RULES, 1000.0))
    for t, (window, _) in zip(range(10, 20), strategy.calls, strict=True):
        np.testing.assert_array_equal(window.features, market.raw_features[t].numpy()[:, [1, 0]])
    with pytest.raises(InputError, match=r"recorder needs the features nonsense, .* it has return_1, return_5"):
        backtest(Recorder(feature_names=("nonsense", "return_1")), panel, MarketPeriod(market, 10, 20, RULES, 1000.0))


class WindowRecorder(Recorder):
    """A recorder that reads features of four bars."""

    feature_lookback = 4


def test_a_feature_lookback_gives_the_features_of_past_bars(market_of):
    panel, market = market_of(prices(), features=FEATURES)
    strategy = WindowRecorder(feature_names=("return_1",))
    backtest(strategy, panel, MarketPeriod(market, 1, 20, RULES, 1000.0))
    for t, (window, _) in zip(range(1, 20), strategy.calls, strict=True):
        rows = market.raw_features[max(0, t - 3) : t + 1, :, :1].numpy()
        np.testing.assert_array_equal(window.features, rows)
    strategy.feature_lookback = 0
    with pytest.raises(InputError, match=r"feature_lookback of strategy recorder must be an integer of at least 1 bar"):
        backtest(strategy, panel, MarketPeriod(market, 1, 20, RULES, 1000.0))


@pytest.mark.parametrize("fill", ["next", "same_close"])
def test_changing_the_arguments_changes_no_result(market_of, fill):
    panel, market = market_of(prices(), fill=fill, features=FEATURES)
    before, table = panel.sha256, market.raw_features.clone()
    unchanged = backtest(Recorder(feature_names=FEATURES), panel, MarketPeriod(market, 6, 39, RULES, 1000.0))
    overwritten = backtest(
        Recorder(feature_names=FEATURES, overwrite=True), panel, MarketPeriod(market, 6, 39, RULES, 1000.0)
    )
    np.testing.assert_array_equal(unchanged.equity, overwritten.equity)
    np.testing.assert_array_equal(unchanged.weights, overwritten.weights)
    assert dataclasses.replace(panel).sha256 == before  # computed again
    torch.testing.assert_close(market.raw_features, table, rtol=0, atol=0, equal_nan=True)


def test_window_holds_no_reference_to_later_bars(market_of):
    panel, _ = market_of(prices())
    window = window_at(panel, 10)
    for entry in fields(window):
        value = getattr(window, entry.name)
        if isinstance(value, np.ndarray):
            assert len(value) == 11
            assert not any(np.shares_memory(value, owned) for owned in (panel.close, panel.tradable, panel.times))
            assert value.base is None or value.base.shape == value.shape


def test_result_is_complete(market_of):
    panel, market = market_of(prices())
    result = backtest(Recorder(), panel, MarketPeriod(market, 5, 20, RULES, 1000.0))
    assert result.name == "recorder"
    np.testing.assert_array_equal(result.times, panel.times[5:21])
    assert result.equity.shape == result.turnover.shape == result.costs.shape == (16,)
    assert result.weights.shape == (16, 3)
    assert tuple(result.metrics) == METRIC_NAMES
    assert result.metrics["costs_paid"] == pytest.approx(result.costs.sum())
    np.testing.assert_allclose(
        result.costs[1:], 0.001 * result.turnover[1:] * (result.equity + result.costs)[1:], rtol=0.2
    )


def test_mismatched_arguments_are_refused(market_of):
    panel, market = market_of(prices())
    other, _ = market_of(prices(bars=30))
    with pytest.raises(InputError, match="another panel"):
        backtest(Recorder(), other, MarketPeriod(market, 5, 20, RULES, 1000.0))

    class Long(Recorder):
        def target_weights(self, window, positions):
            return np.zeros(7)

    with pytest.raises(InputError, match="recorder at 2020-01-06 must be one number for each of the 3 symbols"):
        backtest(Long(), panel, MarketPeriod(market, 5, 20, RULES, 1000.0))

    class Blind(Recorder):
        lookback = 0

    with pytest.raises(InputError, match="lookback"):
        backtest(Blind(), panel, MarketPeriod(market, 5, 20, RULES, 1000.0))
