"""Each baseline against an independent implementation, on real prices."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
from finrl_pod_strategies.baselines import (
    BASELINES,
    Optimised,
    equal_risk_contribution,
    index_market,
    make_baseline,
    run_baseline,
    run_baselines,
    shrunk_covariance,
    trailing_returns,
)
from skfolio import RiskMeasure
from skfolio.optimization import HierarchicalRiskParity, InverseVolatility, MeanRisk, ObjectiveFunction
from sklearn.covariance import LedoitWolf

from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import backtest, window_at
from finrl_pod.evaluate.variations import RecordingStrategy
from finrl_pod.market.costs import Frictions
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.protocols import Strategy
from finrl_pod.types import Positions

RULES = ExecutionRules(0.001)
BUYING = ("equal_weight_buy_and_hold", "index")
T = 700  # a bar inside the fixture with more than 504 bars before it


def in_cash(assets: int) -> Positions:
    return Positions(np.zeros(assets), 1.0, 1000.0)


def weights_at(name: str, panel, t: int = T) -> np.ndarray:
    strategy = make_baseline(name)
    weights = strategy.target_weights(window_at(panel, t, strategy.lookback), in_cash(len(panel.symbols)))
    assert weights is not None
    return weights


def month_starts(times, first: int, last: int) -> list[int]:
    """Decision bars of a monthly strategy, by pandas: the first bar, and each bar that opens a month."""
    months = pd.DatetimeIndex(times).to_period("M")
    return [t for t in range(first, last) if t == first or months[t] != months[t - 1]]


@pytest.mark.parametrize("name", [n for n in BASELINES if n not in (*BUYING, "savings_plan")])
def test_monthly_baselines_trade_only_after_the_first_bar_of_a_month(stocks, name):
    panel, market = stocks
    result = run_baseline(name, panel, MarketPeriod(market, 600, 690, RULES, 1e6))
    traded = [600 + i for i in np.flatnonzero(result.turnover > 1e-9)]
    assert traded == [t + 1 for t in month_starts(panel.times, 600, 690)]


@pytest.mark.parametrize("name", BUYING)
def test_buy_and_hold_baselines_trade_once(stocks, name):
    panel, market = stocks
    result = run_baseline(name, panel, MarketPeriod(market, 600, 690, RULES, 1e6))
    assert np.flatnonzero(result.turnover).tolist() == [1]


def test_equal_weight_skips_assets_without_a_price(stocks):
    panel, _ = stocks
    tradable = panel.tradable.copy()
    tradable[T, 3] = False
    weights = weights_at("equal_weight", replace(panel, tradable=tradable))
    assert weights[3] == 0.0
    np.testing.assert_allclose(np.delete(weights, 3), 1 / 19)


def test_index_grows_with_the_index_less_the_cost_of_the_purchase(stocks):
    panel, market = stocks
    result = run_baseline("index", panel, MarketPeriod(market, 600, 690, ExecutionRules(0.01), 1000.0))
    index = panel.benchmark.close
    assert result.symbols == ("S&P 500",)
    # Shares are sized at the close of bar 600 and reduced if the close of 601 and the fee exceed the cash.
    shares = min(1000.0 / index[600], 1000.0 / (index[601] * 1.01))
    left = 1000.0 - shares * index[601] * 1.01
    np.testing.assert_allclose(result.equity[1:], left + shares * index[601:691], rtol=1e-12)


def test_minimum_variance_satisfies_the_kkt_conditions(stocks):
    panel, _ = stocks
    weights = weights_at("minimum_variance", panel)
    close = panel.close[T - 252 : T + 1]
    covariance = np.cov((close[1:] / close[:-1] - 1).T)
    slope = covariance @ weights  # half the gradient: equal on what is held, no smaller elsewhere (Karush-Kuhn-Tucker)
    variance = weights @ slope
    assert weights.sum() == pytest.approx(1.0)
    held = weights > 1e-4
    np.testing.assert_allclose(slope[held], variance, rtol=1e-3)
    assert (slope >= variance * (1 - 1e-3)).all()


def test_mean_variance_satisfies_the_optimality_conditions(stocks):
    panel, _ = stocks
    weights = weights_at("mean_variance", panel)
    close = panel.close[T - 504 : T + 1]
    returns = close[1:] / close[:-1] - 1
    mean, covariance = returns.mean(0), np.cov(returns.T)
    assert weights.sum() == pytest.approx(1.0)
    # At the tangency portfolio mean / gain - slope / variance is zero on what is held and not above it elsewhere.
    slope = covariance @ weights
    score = mean / (mean @ weights) - slope / (weights @ slope)
    np.testing.assert_allclose(score[weights > 1e-3], 0.0, atol=1e-2)
    assert (score <= 1e-2).all()


def test_mean_variance_holds_cash_if_no_mean_is_positive(stocks):
    panel, _ = stocks
    close = panel.close * np.exp(-0.01 * np.arange(len(panel.times)))[:, None]
    assert not weights_at("mean_variance", replace(panel, close=close)).any()
    assert weights_at("minimum_variance", replace(panel, close=close)).sum() == pytest.approx(1.0)


SKFOLIO = {
    "minimum_variance": (252, MeanRisk(risk_measure=RiskMeasure.VARIANCE), 5e-4),  # its solver stops at a tolerance
    "mean_variance": (504, MeanRisk(ObjectiveFunction.MAXIMIZE_RATIO, RiskMeasure.VARIANCE), 5e-4),
    "hierarchical_risk_parity": (252, HierarchicalRiskParity(risk_measure=RiskMeasure.VARIANCE), 1e-12),
    "inverse_volatility": (252, InverseVolatility(), 1e-12),
}


@pytest.mark.parametrize("name", SKFOLIO)
def test_optimised_weights_equal_those_of_skfolio(stocks, name):
    panel, _ = stocks
    bars, model, tolerance = SKFOLIO[name]
    for t in (600, T, 900, 1200):
        close = panel.close[t - bars : t + 1]
        model.fit(close[1:] / close[:-1] - 1)
        np.testing.assert_allclose(weights_at(name, panel, t), model.weights_, atol=tolerance)


def test_two_equal_assets_are_optimised(stocks):
    panel, _ = stocks
    close = panel.close.copy()
    close[:, 1] = close[:, 0]
    twins = replace(panel, close=close)
    single = replace(panel, symbols=panel.symbols[1:], close=close[:, 1:], tradable=panel.tradable[:, 1:])
    for name in ("minimum_variance", "mean_variance"):
        weights = weights_at(name, twins)
        np.testing.assert_allclose([weights[:2].sum(), *weights[2:]], weights_at(name, single), atol=1e-6)


def test_risk_parity_of_two_assets_is_inverse_variance(stocks):
    panel, _ = stocks
    pair = replace(panel, symbols=panel.symbols[:2], close=panel.close[:, :2], tradable=panel.tradable[:, :2])
    close = pair.close[T - 252 : T + 1]
    inverse = 1 / (close[1:] / close[:-1] - 1).var(0)
    np.testing.assert_allclose(weights_at("hierarchical_risk_parity", pair), inverse / inverse.sum(), rtol=1e-9)


@pytest.mark.parametrize("t", [600, 1200])
def test_contributions_to_the_shrunk_risk_are_equal(stocks, t):
    panel, _ = stocks
    weights = weights_at("equal_risk_contribution", panel, t)
    assert (weights > 0).all()
    assert weights.sum() == pytest.approx(1.0)
    close = panel.close[t - 252 : t + 1]
    covariance = LedoitWolf().fit(close[1:] / close[:-1] - 1).covariance_
    contributions = weights * (covariance @ weights) / (weights @ covariance @ weights)
    np.testing.assert_allclose(contributions, 1 / 20, rtol=0, atol=1e-8)


def test_contributions_are_equal_where_assets_hedge_each_other():
    root = np.random.default_rng(0).normal(size=(40, 60)) * np.logspace(-3, 0, 60)
    weights = equal_risk_contribution(np.zeros(60), shrunk_covariance(root))
    contributions = weights * (shrunk_covariance(root) @ weights)
    np.testing.assert_allclose(contributions / contributions.sum(), 1 / 60, rtol=0, atol=1e-8)


def test_contributions_of_a_thousand_assets_are_equal():
    """With a common factor; returns are fewer than assets."""
    rng = np.random.default_rng(0)
    covariance = shrunk_covariance(rng.normal(0, 0.01, (252, 1)) + rng.normal(0, 0.015, (252, 1_000)))
    weights = equal_risk_contribution(np.zeros(1_000), covariance)
    contributions = weights * (covariance @ weights)
    np.testing.assert_allclose(contributions / contributions.sum(), 1e-3, rtol=1e-8)


def test_momentum_holds_the_top_third_without_the_last_month(stocks):
    panel, _ = stocks
    weights = weights_at("momentum_12_1", panel)
    growth = [panel.close[T - 21, i] / panel.close[T - 252, i] for i in range(20)]
    best = sorted(range(20), key=lambda i: -growth[i])[:7]
    assert sorted(np.flatnonzero(weights)) == sorted(best)
    np.testing.assert_allclose(weights[best], 1 / 7)


@pytest.mark.parametrize("name", ["momentum_12_1", "minimum_variance", "hierarchical_risk_parity", "mean_variance"])
def test_assets_without_history_are_skipped_and_gaps_are_filled_forward(stocks, name):
    panel, _ = stocks
    tradable = panel.tradable.copy()
    tradable[: T - 50, 0] = False  # started too late
    tradable[T:, 1] = False  # no price at the decision
    tradable[T - 100 : T - 95, 2] = False  # a short gap
    weights = weights_at(name, replace(panel, tradable=tradable, close=np.where(tradable, panel.close, np.nan)))
    assert weights[0] == weights[1] == 0.0
    assert weights.sum() == pytest.approx(1.0)
    if name == "hierarchical_risk_parity":
        assert weights[2] > 0


def test_trailing_returns_fill_gaps_forward(stocks):
    panel, _ = stocks
    tradable = panel.tradable.copy()
    tradable[T - 3, 2] = False
    gapped = replace(panel, tradable=tradable)
    returns, chosen = trailing_returns(window_at(gapped, T), 252)
    assert chosen.tolist() == list(range(20))
    assert returns[-4, 2] == 0.0
    assert returns[-3, 2] == pytest.approx(panel.close[T - 2, 2] / panel.close[T - 4, 2] - 1)
    assert returns[-3, 3] == pytest.approx(panel.close[T - 2, 3] / panel.close[T - 3, 3] - 1)


@pytest.mark.parametrize("name", ["momentum_12_1", "minimum_variance", "mean_variance", "hierarchical_risk_parity"])
def test_account_stays_in_cash_without_enough_history(stocks, name):
    panel, market = stocks
    result = run_baseline(name, panel, MarketPeriod(market, 0, 100, RULES, 1000.0))
    assert not result.weights.any()
    assert set(result.metrics.values()) == {0.0}


@pytest.mark.parametrize("name", ["minimum_variance", "hierarchical_risk_parity", "inverse_volatility"])
def test_covariance_is_shrunk_with_more_assets_than_returns(stocks, name):
    panel, _ = stocks
    few = replace(make_baseline(name), bars=len(panel.symbols) - 2)  # a warning of a singular matrix would be an error
    window = window_at(panel, T, few.lookback)
    weights = few.target_weights(window, in_cash(len(panel.symbols)))
    assert weights.sum() == pytest.approx(1.0)
    returns, chosen = trailing_returns(window, few.bars)
    np.testing.assert_allclose(shrunk_covariance(returns), LedoitWolf().fit(returns).covariance_, rtol=1e-9)
    if name == "minimum_variance":
        marginal = LedoitWolf().fit(returns).covariance_ @ weights[chosen]  # equal for all held assets
        assert np.ptp(marginal[weights[chosen] > 1e-4]) < 1e-2 * marginal.mean()


@pytest.mark.parametrize("name", ["equal_weight", "equal_weight_buy_and_hold", "momentum_12_1", "mean_variance"])
@pytest.mark.parametrize("delay", [1, 3])
def test_baselines_are_asked_only_where_they_trade(name, delay, stocks):
    panel, market = stocks
    calls = []

    class Counted(type(make_baseline(name))):
        def target_weights(self, window, positions):
            calls.append(window.times[-1])
            return super().target_weights(window, positions)

    baseline = make_baseline(name)
    counted = Counted(**{field.name: getattr(baseline, field.name) for field in fields(baseline)})
    rules = ExecutionRules(0.001, frictions=Frictions(delay=delay))
    ends = market.delisted.clone()
    ends[640:, 2] = True
    fillable = market.fillable.clone()
    fillable[640:, 2] = False
    period = MarketPeriod(replace(market, delisted=ends, fillable=fillable), 600, 690, rules, 1e6)
    skipping = backtest(counted, panel, period)
    assert len(calls) <= 6 * delay
    asked = backtest(RecordingStrategy(baseline), panel, period)  # at every bar
    for column in ("equity", "weights", "turnover", "costs"):
        np.testing.assert_array_equal(getattr(skipping, column), getattr(asked, column))


def test_failed_fit_is_reported_with_its_date(stocks):
    panel, market = stocks

    def broken(mean, covariance):
        raise ValueError("singular")

    with pytest.raises(InputError, match="broken could not be fitted at 2018-10-12: singular"):
        backtest(Optimised("broken", broken, bars=20), panel, MarketPeriod(market, T, T + 5, RULES, 1000.0))


def test_single_asset_gets_full_weight(stocks):
    panel, _ = stocks
    one = replace(panel, symbols=panel.symbols[:1], close=panel.close[:, :1], tradable=panel.tradable[:, :1])
    for name in ("minimum_variance", "mean_variance", "hierarchical_risk_parity", "momentum_12_1"):
        assert weights_at(name, one).tolist() == [1.0]


def test_registry_makes_strategies_by_name():
    for name in BASELINES:
        strategy = make_baseline(name)
        assert isinstance(strategy, Strategy)
        assert strategy.name == name
    with pytest.raises(InputError, match="did you mean equal_weight"):
        make_baseline("equal_wieght")
    with pytest.raises(InputError, match=r"known are equal_weight.*package.module:Name"):
        make_baseline("zzz")


def test_all_baselines_run_under_the_same_rules(stocks):
    panel, market = stocks
    results = run_baselines(panel, MarketPeriod(market, 600, 630, RULES, 1e6))
    assert list(results) == [name for name in BASELINES if name != "savings_plan"]
    assert all(len(result.equity) == 31 and result.equity[0] == 1e6 for result in results.values())
    bare = replace(panel, benchmark=None)
    assert list(run_baselines(bare, MarketPeriod(market, 600, 610, RULES, 1e6))) == [
        name for name in BASELINES if name not in ("index", "savings_plan")
    ]
    with pytest.raises(InputError, match="has no index"):
        run_baseline("index", bare, MarketPeriod(market, 600, 630, RULES, 1e6))
    with pytest.raises(InputError, match="index_market"):
        backtest(make_baseline("index"), panel, MarketPeriod(market, 600, 630, RULES, 1e6))


def test_index_market_keeps_the_fill_rule(stocks):
    panel, _ = stocks
    same = build_market(panel, (), (0, 100), "same_close")
    alone, market = index_market(panel, same.fill_rule)
    assert market.fill_rule == "same_close"
    assert market.shape == (len(panel.times), 1, 0)
    assert not alone.adjusted
    assert "dividends" in alone.flaws[0]
