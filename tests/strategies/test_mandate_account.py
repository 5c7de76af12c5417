"""Recorded targets of agents under a mandate, and the base portfolio as a strategy."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from finrl_pod_strategies.mandate_account import BasePortfolio, DecisionRecorder, MandateAccount
from finrl_pod_strategies.score_parts import ScoredDecision

from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import backtest, window_at
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.settings.run import MandateConfig
from finrl_pod.types import Floats, Panel, Positions, Window

SCORES = torch.tensor([[2.0, 0.0, -1.0, 0.5], [0.0, 1.0, -1.0, 0.0]], dtype=torch.float64)
LIMITED = MandateConfig(tilt=0.8, trade_speed=0.1, max_weight=0.27)


@dataclass
class FixedScores:
    """Two members with constant scores; at every `skip`-th bar it makes no decision."""

    config: MandateConfig
    skip: int = 4
    name: str = "champion"
    feature_names: tuple[str, ...] = ()
    calls: int = 0
    scored_decision: ScoredDecision | None = None
    account: MandateAccount = field(init=False)

    def __post_init__(self) -> None:
        self.account = MandateAccount(self.config, 1.0)
        self.lookback = self.account.lookback

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        self.calls += 1
        if self.calls % self.skip == 0:
            return None
        return self.account.target_weights(SCORES, lambda weights: weights.mean(0), window, positions)


def prices(bars: int = 60) -> Panel:
    rng = np.random.default_rng(5)
    close = 20 * np.exp(rng.normal(0, 0.02, (bars, 4)).cumsum(0))
    close[40:, 2] = np.nan
    times = np.arange("2020-01-01", bars, dtype="datetime64[D]").astype("datetime64[ns]")
    return Panel(times, ("A", "B", "C", "D"), close, np.isfinite(close))


def test_targets_are_recorded_before_limits_and_slow_trading() -> None:
    panel = prices()
    recorder = DecisionRecorder(FixedScores(LIMITED))
    result = backtest(recorder, panel, MarketPeriod(build_market(panel, (), (0, 59)), 10, 59, ExecutionRules(), 1e6))
    tilts = recorder.desired_tilts(result.times, 4)
    table = tilts.weights
    base = np.full(4, 0.25)
    tilted = base * np.exp(0.8 * np.tanh(SCORES.numpy()))
    target = (tilted / tilted.sum(1, keepdims=True)).mean(0)
    assert target.max() > LIMITED.max_weight
    assert table[0] == pytest.approx(target - base, rel=1e-12)
    assert np.isnan(table[3]).all()  # no decision
    assert np.isnan(table[-1]).all()  # the last bar has no decision
    assert np.isnan(table[36]).tolist() == [False, False, True, False]  # C is delisted
    assert np.nansum(table[36]) == pytest.approx(0.0, abs=1e-12)


def test_recording_changes_no_result() -> None:
    panel = prices()
    setup = (panel, MarketPeriod(build_market(panel, (), (0, 59)), 10, 59, ExecutionRules(), 1e6))
    unrecorded, recorded = (
        backtest(FixedScores(LIMITED), *setup),
        backtest(DecisionRecorder(FixedScores(LIMITED)), *setup),
    )
    assert np.array_equal(unrecorded.equity, recorded.equity)


def test_base_portfolio_is_the_mandate_at_tilt_zero() -> None:
    panel = prices()
    setup = (panel, MarketPeriod(build_market(panel, (), (0, 59)), 10, 59, ExecutionRules(), 1e6))
    base = backtest(BasePortfolio(MandateConfig(tilt=0.8, trade_speed=0.1)), *setup)
    untilted = backtest(FixedScores(MandateConfig(tilt=0.0, trade_speed=0.1), skip=1000), *setup)
    assert base.weights == pytest.approx(untilted.weights, abs=1e-12)
    assert np.abs(base.weights[1:30] - 0.25).max() < 0.05
    assert base.weights[-1, 2] == 0.0  # delisted; its proceeds are spread over the other assets
    assert base.weights[-1].sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("combined", "message"),
    [
        ([0.1, 0.6, 0.1, 0.1], r"must be at most 0.27 \(mandate.max_weight\), got 0.6 for B"),
        ([0.25, 0.25, 0.27, 0.27], "may add up to 1 at most"),
        ([0.2, 0.2, np.nan, 0.2], "must be finite, got nan for C"),
    ],
)
def test_desired_weights_beyond_the_mandate_are_refused(combined: list[float], message: str) -> None:
    account, cash = MandateAccount(LIMITED, 1.0), Positions(weights=np.zeros(4), cash=1.0, equity=1.0)
    window = window_at(prices(), 30, account.lookback)
    with pytest.raises(InputError, match=f"desired weights {message}"):
        account.target_weights(SCORES, lambda _: np.array(combined), window, cash)
