"""The mandate's formulas against plain numpy, and its invariants."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.errors import ConfigError
from finrl_pod.market.mandate import (
    MandateBar,
    bar_returns,
    decision_bars,
    desired_weights,
    drift,
    entry_weights,
    initial_budget,
    replenish_budget,
    tilted,
    trade_towards,
)
from finrl_pod.market.mandate_checks import validate_mandate
from finrl_pod.market.weight_limits import cap_weights
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig

YEAR = 252.0


def bar_of(base, tradable=None, decides=True, returns=None):
    base = torch.as_tensor(base, dtype=torch.float64)
    tradable = torch.ones_like(base, dtype=torch.bool) if tradable is None else torch.as_tensor(tradable)
    return MandateBar(base, tradable, torch.tensor([decides]), returns)


def equal_bar(assets):
    return bar_of(np.full(assets, 1 / assets))


def water_filling(weights, limit):
    """Capped weights by bisection on c."""
    total = min(weights.sum(), limit * (weights > 0).sum())
    low, high = 1.0, 1e12
    for _ in range(300):
        c = (low + high) / 2
        low, high = (c, high) if np.minimum(limit, c * weights).sum() < total else (low, c)
    return np.minimum(limit, high * weights)


@given(st.integers(2, 12), st.floats(0.0, 3.0), st.integers(0, 2**31))
def test_tilted_weights_match_the_formula_and_their_bound(assets, tilt, seed):
    rng = np.random.default_rng(seed)
    base = rng.dirichlet(np.ones(assets))
    scores = rng.normal(size=assets) * 5
    config = MandateConfig(tilt=tilt)
    weights = tilted(torch.from_numpy(scores), bar_of(base), torch.zeros(assets).double(), config, 1.0).numpy()
    mass = base * np.exp(tilt * np.tanh(scores))
    np.testing.assert_allclose(weights, mass / mass.sum(), rtol=1e-12)
    relative = weights / base
    assert relative.max() / relative.min() <= np.exp(2 * tilt) * (1 + 1e-9)


@given(st.integers(2, 30), st.floats(0.0, 2.0), st.integers(0, 2**31))
def test_effective_number_of_targets_has_the_stated_lower_bound(assets, tilt, seed):
    scores = torch.from_numpy(np.random.default_rng(seed).choice([-50.0, 0.0, 50.0], assets))
    weights = tilted(scores, equal_bar(assets), torch.zeros(assets).double(), MandateConfig(tilt=tilt), 1.0)
    effective = 1 / float((weights**2).sum())
    assert effective >= assets * 4 * np.exp(2 * tilt) / (1 + np.exp(2 * tilt)) ** 2 - 1e-9


@given(st.integers(1, 12), st.floats(0.05, 1.0), st.floats(0.1, 1.0), st.integers(0, 2**31))
def test_capped_weights_equal_water_filling(assets, limit, total, seed):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(assets, 0.4)) * total
    weights[rng.random(assets) < 0.2] = 0.0
    actual = cap_weights(torch.from_numpy(weights), limit).numpy()
    expected = weights if limit >= 1 else water_filling(weights, limit)
    np.testing.assert_allclose(actual, expected, atol=1e-9)


def test_gradient_of_capped_weights_is_that_of_finite_differences():
    weights = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: cap_weights(w, 0.35), weights)


def test_score_zero_holds_the_base_exactly():
    base = np.array([0.5, 0.3, 0.2, 0.0])
    config = MandateConfig(tilt=1.0, trade_speed=1.0)
    weights = desired_weights(torch.zeros(4).double(), bar_of(base), torch.zeros(4).double(), config, 1.0, YEAR)
    np.testing.assert_allclose(weights.numpy(), base, rtol=1e-15)


def test_untradable_holdings_reduce_the_investable_weight():
    tradable = [True, True, False]
    bar = bar_of([0.6, 0.4, 0.0], tradable)
    held = torch.tensor([0.3, 0.3, 0.25]).double()
    weights = desired_weights(torch.zeros(3).double(), bar, held, MandateConfig(), 1.0, YEAR)
    np.testing.assert_allclose(weights.numpy(), np.array([0.6, 0.4, 0.0]) * 0.75)


def test_risk_limits_hold_with_equality_when_binding():
    rng = np.random.default_rng(0)
    returns = torch.from_numpy(rng.normal(0, 0.02, (252, 5)))
    bar = bar_of(np.full(5, 0.2), returns=returns)
    scores = torch.from_numpy(rng.normal(size=5))
    held = torch.zeros(5).double()

    def volatility(weights):
        return float((returns @ weights).numpy().std() * np.sqrt(YEAR))

    target = MandateConfig(tilt=2.0, volatility_target=0.05)
    assert volatility(desired_weights(scores, bar, held, target, 1.0, YEAR)) == pytest.approx(0.05)
    assert volatility(entry_weights(bar, held, target, 1.0, YEAR)) == pytest.approx(0.05)
    wide = MandateConfig(tilt=2.0, volatility_target=9.0)
    unlimited = desired_weights(scores, bar, held, MandateConfig(tilt=2.0), 1.0, YEAR)
    np.testing.assert_allclose(desired_weights(scores, bar, held, wide, 1.0, YEAR), unlimited, rtol=1e-14)


@pytest.mark.parametrize("limits", [{}, {"max_weight": 0.3}, {"volatility_target": 0.05}])
def test_target_weights_have_exact_gradients(limits):
    rng = np.random.default_rng(1)
    bar = bar_of(rng.dirichlet(np.ones(5) * 5), returns=torch.from_numpy(rng.normal(0, 0.02, (40, 5))))
    scores = torch.from_numpy(rng.normal(size=5)).requires_grad_()
    config = MandateConfig(tilt=1.5, **limits)
    held = torch.zeros(5).double()
    assert torch.autograd.gradcheck(lambda x: desired_weights(x, bar, held, config, 1.0, YEAR), scores)


# ---------------------------------------------------------------------- virtual holdings


def step(virtual, target, held=None, bar=None, budget=None, **settings_of):
    target = torch.as_tensor(target, dtype=torch.float64)
    virtual = torch.as_tensor(virtual, dtype=torch.float64)
    held = virtual if held is None else torch.as_tensor(held, dtype=torch.float64)
    bar = bar or equal_bar(len(target))
    budget = None if budget is None else torch.tensor(budget, dtype=torch.float64)
    return trade_towards(target, bar.base, bar, held, virtual, budget, MandateConfig(**settings_of))


def test_a_decision_trades_a_fraction_of_the_distance_to_the_target():
    decision = step([0.5, 0.5], [0.8, 0.2], trade_speed=0.1)
    np.testing.assert_allclose(decision.weights, [0.53, 0.47])
    assert bool(decision.trades)


def test_an_account_in_cash_enters_the_base_at_once():
    decision = step([0.0, 0.0], [0.8, 0.2], trade_speed=0.1)
    np.testing.assert_allclose(decision.weights, [0.53, 0.47])


def test_between_decisions_the_holdings_are_kept():
    bar = equal_bar(2)._replace(decides=torch.tensor([False]))
    decision = step([0.6, 0.4], [0.8, 0.2], bar=bar)
    np.testing.assert_allclose(decision.weights, [0.6, 0.4])
    assert not bool(decision.trades)


def test_proceeds_of_a_delisting_are_reinvested_in_proportion_at_once():
    bar = bar_of([0.5, 0.5, 0.0], [True, True, False], decides=False)
    decision = step([0.4, 0.2, 0.4], [0.5, 0.5, 0.0], held=[0.4, 0.2, 0.0], bar=bar)
    np.testing.assert_allclose(decision.weights, [2 / 3, 1 / 3, 0.0])
    assert bool(decision.trades)


def test_halted_holdings_keep_their_weight():
    bar = bar_of([0.5, 0.5, 0.0], [True, True, False])
    decision = step([0.4, 0.3, 0.3], [0.35, 0.35, 0.0], held=[0.4, 0.3, 0.3], bar=bar, trade_speed=1.0)
    np.testing.assert_allclose(decision.weights, [0.35, 0.35, 0.3])


def test_turnover_is_limited_by_the_budget():
    decision = step([0.5, 0.5], [1.0, 0.0], budget=0.1, trade_speed=1.0, max_turnover=1.2)
    np.testing.assert_allclose(decision.weights, [0.6, 0.4])
    assert float(decision.budget) == 0.0
    config = MandateConfig(max_turnover=1.2)
    assert initial_budget(config) == pytest.approx(0.1)
    assert float(replenish_budget(decision.budget, 21, config, YEAR)) == pytest.approx(0.1)
    assert float(replenish_budget(decision.budget, 1, config, YEAR)) == pytest.approx(1.2 / YEAR)


@settings(max_examples=30)
@given(st.integers(2, 6), st.integers(0, 2**31))
def test_virtual_holdings_stay_weights(assets, seed):
    rng = np.random.default_rng(seed)
    config = MandateConfig(trade_speed=0.3)
    virtual = torch.zeros(assets, dtype=torch.float64)
    for _ in range(10):
        tradable = rng.random(assets) < 0.8
        tradable[rng.integers(assets)] = True
        base = np.where(tradable, rng.random(assets), 0)
        bar = bar_of(base / base.sum(), tradable)
        held = torch.where(torch.from_numpy(rng.random(assets) < 0.9), virtual, 0.0)
        terms = (bar, held, config, 1.0)
        target = desired_weights(torch.from_numpy(rng.normal(size=assets)), *terms, YEAR)
        virtual = trade_towards(target, entry_weights(*terms, YEAR), bar, held, virtual, None, config).weights
        assert float(virtual.min()) >= 0
        assert float(virtual.sum()) <= 1 + 1e-12
        virtual = drift(virtual, torch.from_numpy(rng.uniform(0.5, 1.5, assets)))


def test_drift_equals_holdings_at_new_prices():
    shares, old, new = np.array([3.0, 1.0]), np.array([10.0, 40.0]), np.array([12.0, 36.0])
    cash = 30.0
    weights = shares * old / (cash + (shares * old).sum())
    expected = shares * new / (cash + (shares * new).sum())
    np.testing.assert_allclose(drift(torch.from_numpy(weights), torch.from_numpy(new / old)), expected)


# ---------------------------------------------------------------------- tables and settings


def test_decision_bars_follow_the_calendar():
    times = np.arange("2024-01-01", "2024-03-01", dtype="datetime64[D]")
    times = times[np.is_busday(times)].astype("datetime64[ns]")
    month = decision_bars(times, "month")
    assert [str(t)[:10] for t in times[month]] == ["2024-01-01", "2024-02-01"]
    assert all(t.astype("datetime64[D]").item().weekday() == 0 for t in times[decision_bars(times, "week")])
    assert decision_bars(times, 1).all()
    every = decision_bars(times, 5)
    for start in range(1, 20):
        np.testing.assert_array_equal(decision_bars(times[start:], 5)[1:], every[start + 1 :])
    assert every[1:].sum() == pytest.approx(len(times) / 5, abs=1)


def test_returns_need_prices_at_both_bars():
    close = torch.tensor([[1.0, 1.0], [2.0, 1.0], [3.0, 4.0]], dtype=torch.float64)
    tradable = torch.tensor([[True, False], [True, True], [True, True]])
    np.testing.assert_allclose(bar_returns(close, tradable), [[0, 0], [1, 0], [0.5, 3]])


@pytest.mark.parametrize(
    ("mandate", "environment", "text"),
    [
        (MandateConfig(max_weight=0.04), EnvironmentConfig(), "max_weight"),
        (MandateConfig(), EnvironmentConfig(short=True), "short"),
        (MandateConfig(), EnvironmentConfig(kind="stock_trading"), "stock_trading"),
        (MandateConfig(trade_speed=0.0), EnvironmentConfig(), "trade_speed"),
        (MandateConfig(decide_every=0), EnvironmentConfig(), "decide_every"),
    ],
)
def test_settings_in_conflict_are_refused(mandate, environment, text):
    with pytest.raises(ConfigError, match=text):
        validate_mandate(mandate, environment, tuple(map(str, range(20))))
