"""Base weights at a bar are computed once a month, from that month's window only."""

from __future__ import annotations

import numpy as np
import pytest
from finrl_pod_strategies import base_portfolios
from finrl_pod_strategies.base_portfolios import base_at, base_lookback

from finrl_pod.evaluate.backtest import window_at
from finrl_pod.types import MarketTensor, Panel


def test_a_month_is_computed_once(stocks: tuple[Panel, MarketTensor], monkeypatch: pytest.MonkeyPatch) -> None:
    panel, lookback = stocks[0], base_lookback("inverse_volatility")
    calls, compute = [], base_portfolios._weights
    monkeypatch.setattr(base_portfolios, "_month_cache", {})
    monkeypatch.setattr(base_portfolios, "_weights", lambda *terms: calls.append(terms) or compute(*terms))
    march = np.flatnonzero(panel.times.astype("datetime64[M]") == np.datetime64("2019-03"))
    weights = [base_at("inverse_volatility", window_at(panel, int(t), lookback)) for t in march]
    assert len(calls) == 1
    assert all(np.array_equal(weights[0], later) for later in weights)
    base_at("inverse_volatility", window_at(panel, int(march[-1]) + 1, lookback))
    assert len(calls) == 2


def test_other_prices_give_other_weights(stocks: tuple[Panel, MarketTensor]) -> None:
    panel, t = stocks[0], 800
    window = window_at(panel, t, base_lookback("inverse_volatility"))
    before = base_at("inverse_volatility", window)
    window.close[-60:-30, 0] *= 1 + 0.1 * (-1.0) ** np.arange(30)
    after = base_at("inverse_volatility", window)
    assert after[0] < 0.8 * before[0]
