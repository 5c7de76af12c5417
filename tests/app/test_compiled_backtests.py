"""Backtests of champions and their base in compiled code against `backtest_recorded`, which calls them bar by bar."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from finrl_pod_app.evaluation import compiled_backtests
from finrl_pod_app.evaluation.compiled_backtests import backtest_decisions
from finrl_pod_strategies.mandate_account import BasePortfolio, DecisionRecorder
from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.variations import RecordingStrategy, backtest_recorded
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.market.rules import rules_of
from finrl_pod.native.prebuild import find_compiler
from finrl_pod.rl.networks.policies import PolicySpec, make_policy
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import AgentSnapshot, BacktestResult, MarketTensor, Panel
from tests.data.panels import random_panel

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")

FEATURES = ("return_1", "return_5", "volatility_21")
FIT, FIRST, LAST = (60, 250), 300, 400
SHARES = (0.5, 0.2, 0.3)
SPREAD = EnvironmentConfig(cost_bps=5.0, half_spread="from data")
MANDATES = {
    "every bar": MandateConfig(tilt=0.8, trade_speed=0.2),
    "every week": MandateConfig(tilt=3.0, trade_speed=0.5, decide_every="week"),
    "no tilt": MandateConfig(tilt=0.0, trade_speed=1.0),
}


def prices() -> Panel:
    """Six tickers with spreads: one is delisted, one has gaps, one is listed late."""
    panel = random_panel(3)
    spread = np.random.default_rng(0).uniform(0, 0.002, panel.close.shape)
    return dataclasses.replace(panel, spread=np.where(panel.tradable, spread, np.nan))


def market_of(panel: Panel) -> MarketTensor:
    return build_market(panel, FEATURES, FIT)


def agent(
    market: MarketTensor, rules: EnvironmentConfig, mandate: MandateConfig, seed: int, kind: str
) -> AgentSnapshot:
    """A saved agent with large random weights."""
    assets = market.shape[1]
    spec = PolicySpec(kind, assets, len(FEATURES), assets, (8, 8), "tilt")
    generator = torch.Generator().manual_seed(seed)
    weights = make_policy(spec).init(generator, torch.float32)
    weights = {name: value + 0.5 * torch.randn(value.shape, generator=generator) for name, value in weights.items()}
    facts = {**dataclasses.asdict(spec), "algorithm": "ppo", "environment": dataclasses.asdict(rules)}
    facts["mandate"] = dataclasses.asdict(mandate)
    return AgentSnapshot(f"g{seed}", None, facts, weights, {}, market.normaliser, {}, 0, "", 0, "0")


def champion_of(market: MarketTensor, rules: EnvironmentConfig, mandate: MandateConfig) -> PolicyStrategy:
    kinds = ("equivariant", "linear", "equivariant")
    return PolicyStrategy([agent(market, rules, mandate, i, kind) for i, kind in enumerate(kinds)], SHARES)


def check(
    compiled: tuple[BacktestResult, RecordingStrategy], expected: tuple[BacktestResult, RecordingStrategy]
) -> None:
    (result, recording) = compiled
    (other, other_recording) = expected
    assert (result.name, result.symbols) == (other.name, other.symbols)
    np.testing.assert_array_equal(result.times, other.times)
    np.testing.assert_allclose(result.equity, other.equity, rtol=1e-9)
    for name in ("weights", "turnover"):
        np.testing.assert_allclose(getattr(result, name), getattr(other, name), rtol=0, atol=1e-9)
    np.testing.assert_allclose(result.costs, other.costs, rtol=1e-6, atol=1e-6)
    assert result.cost_parts.keys() == other.cost_parts.keys()
    for name, costs in other.cost_parts.items():
        np.testing.assert_allclose(result.cost_parts[name], costs, rtol=1e-6, atol=1e-6)
    assert result.metrics == pytest.approx(other.metrics, rel=1e-8, abs=1e-9)
    times = result.times[:-1]
    np.testing.assert_allclose(recording.table(times), other_recording.table(times), rtol=0, atol=1e-9)


@pytest.mark.parametrize("mandate", MANDATES.values(), ids=MANDATES)
def test_compiled_champion_equals_its_backtest(mandate: MandateConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = prices()
    market = market_of(panel)
    period = MarketPeriod(market, FIRST, LAST, rules_of(SPREAD), SPREAD.cash)
    champion = champion_of(market, SPREAD, mandate)
    recorder, other = DecisionRecorder(champion.recreate()), DecisionRecorder(champion.recreate())
    expected = backtest_recorded(other, panel, period)
    monkeypatch.setattr(compiled_backtests, "backtest_recorded", lambda *_: pytest.fail("not compiled"))
    compiled = backtest_decisions(recorder, panel, period, SPREAD)
    check(compiled, expected)
    assert len(compiled[0].cost_parts) == 2
    tilts, other_tilts = (x.desired_tilts(panel.times[FIRST : LAST + 1], 6) for x in (recorder, other))
    np.testing.assert_allclose(tilts.weights, other_tilts.weights, rtol=0, atol=1e-9)
    assert tilts.allowed == pytest.approx(other_tilts.allowed, abs=1e-12)
    decisions = [*recorder.monthly_decisions, recorder.last_decision]
    other_decisions = [*other.monthly_decisions, other.last_decision]
    for decision, other_decision in zip(decisions, other_decisions, strict=True):
        assert decision is not None
        assert other_decision is not None
        assert decision.time == other_decision.time
        parts, other_parts = decision.parts(), other_decision.parts()
        np.testing.assert_allclose(parts.contributions, other_parts.contributions, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(parts.tradable, other_parts.tradable)


def test_compiled_base_equals_its_backtest(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = prices()
    market = market_of(panel)
    period = MarketPeriod(market, FIRST, LAST, rules_of(SPREAD), SPREAD.cash)
    base = BasePortfolio(MANDATES["every week"])
    expected = backtest_recorded(base.recreate(), panel, period)
    monkeypatch.setattr(compiled_backtests, "backtest_recorded", lambda *_: pytest.fail("not compiled"))
    check(backtest_decisions(base, panel, period, SPREAD), expected)


@pytest.mark.parametrize(
    ("rules", "mandate"),
    [
        (dataclasses.replace(SPREAD, per_share=0.01), MandateConfig()),
        (dataclasses.replace(SPREAD, delay=2), MandateConfig()),
        (SPREAD, MandateConfig(max_turnover=1.0)),
        (SPREAD, MandateConfig(max_weight=0.25)),
        (SPREAD, MandateConfig(max_holdings=3)),
    ],
    ids=["per_share", "delay", "max_turnover", "max_weight", "max_holdings"],
)
def test_other_rules_are_those_of_a_backtest(rules: EnvironmentConfig, mandate: MandateConfig) -> None:
    panel = prices()
    period = MarketPeriod(market_of(panel), FIRST, LAST, rules_of(rules), rules.cash)
    base = BasePortfolio(mandate)
    expected = backtest_recorded(base.recreate(), panel, period)
    result, recording = backtest_decisions(base.recreate(), panel, period, rules)
    np.testing.assert_array_equal(result.equity, expected[0].equity)
    np.testing.assert_array_equal(recording.table(result.times), expected[1].table(result.times))
