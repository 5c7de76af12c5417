"""Scores as sums of contributions: exact for every policy, weight times feature for a linear one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from finrl_pod_strategies.mandate_account import BasePortfolio, DecisionRecorder, ScoredStrategy
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.score_parts import REST, ScoredDecision, ScoreParts

from finrl_pod.data.tensor import build_market, normalise
from finrl_pod.evaluate.backtest import backtest, window_at
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import AgentSnapshot, MarketTensor, Positions, Tensor
from tests.strategies.test_policy import FEATURES, RULES, agent, market_of, prices

HELD = Positions(np.array([0.1, 0.2, 0.0, 0.3, 0.1, 0.1]), 0.2, 1e6)
BAR = 320


def decision_of(rows: Tensor, score: object) -> ScoredDecision:
    names = tuple(f"f{i}" for i in range(rows.shape[-1]))
    return ScoredDecision(np.datetime64("2020-01-02"), names, rows, np.ones(rows.shape[1], bool), score)  # type: ignore[arg-type]


def explained(strategy: PolicyStrategy, market: MarketTensor, bars: int = 1) -> ScoreParts:
    """The parts of the decision of a strategy at `BAR`."""
    rows = market.raw_features[BAR + 1 - bars : BAR + 1].double().numpy()
    strategy.target_weights(window_at(prices(), BAR, max(bars, 2), rows if bars > 1 else rows[0]), HELD)
    assert strategy.scored_decision is not None
    return strategy.scored_decision.parts()


def tilting(market: MarketTensor, seed: int) -> AgentSnapshot:
    """A linear agent under a mandate."""
    linear = agent(market, RULES["portfolio"], seed, kind="linear")
    mandate = dataclasses.asdict(MandateConfig())
    assets = market.shape[1]
    return dataclasses.replace(
        linear, spec={**linear.spec, "action": "tilt", "action_size": assets, "mandate": mandate}
    )


def test_contributions_of_a_linear_ensemble_are_mean_weights_times_features() -> None:
    market = market_of(prices(), RULES["portfolio"])
    agents = [tilting(market, seed) for seed in range(2)]
    parts = explained(PolicyStrategy(agents, (0.75, 0.25)), market)
    weights = np.average([member.weights["linear_w"].numpy() for member in agents], axis=0, weights=(0.75, 0.25))
    values = normalise(market.raw_features[BAR].double().numpy(), market.normaliser)
    assert parts.features == FEATURES
    np.testing.assert_array_equal(parts.values, values)
    np.testing.assert_allclose(parts.contributions, weights * values, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(parts.scores, values @ weights, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["equivariant", "linear", "mlp"])
@pytest.mark.parametrize("name", ["portfolio", "with shorts", "shares"])
def test_contributions_add_up_to_the_scores(name: str, kind: str) -> None:
    market = market_of(prices(), RULES[name])
    parts = explained(PolicyStrategy([agent(market, RULES[name], kind=kind)]), market)
    assert parts.features == (*FEATURES, REST)  # the holdings count as well
    np.testing.assert_allclose(parts.contributions.sum(1), parts.scores, rtol=1e-6, atol=1e-6)
    assert np.abs(parts.contributions).max(0).min() > 0.01
    assert np.isnan(parts.values[:, -1]).all()


def test_past_bars_count_for_their_feature_and_members_for_their_share() -> None:
    market = market_of(prices(), RULES["portfolio"])
    agents = [agent(market, RULES["portfolio"], seed, encoder=kind) for seed, kind in enumerate(("none", "gru"))]
    ensemble = explained(PolicyStrategy(agents, (0.25, 0.75)), market, 40)
    np.testing.assert_allclose(ensemble.contributions.sum(1), ensemble.scores, rtol=1e-6, atol=1e-6)
    members = [explained(PolicyStrategy([member]), market, 40).scores for member in agents]
    np.testing.assert_allclose(ensemble.scores, 0.25 * members[0] + 0.75 * members[1], rtol=1e-5)


def test_features_that_act_together_share_their_effect() -> None:
    """The Shapley value of a product of two features is half of it for each."""
    rows = torch.tensor([[[2.0, 3.0, 5.0], [1.0, -1.0, 0.5]]], dtype=torch.float64)
    decision = decision_of(rows, lambda x: x[0, :, 0] * x[0, :, 1] + 4 * x[0, :, 2] + 7)
    parts = decision.parts()
    np.testing.assert_allclose(parts.contributions, [[3, 3, 20, 7], [-0.5, -0.5, 2, 7]])
    np.testing.assert_allclose(parts.scores, [33, 8])


def test_a_decision_because_of_turbulence_has_no_scores() -> None:
    rules = EnvironmentConfig(turbulence_limit=1e-9)
    market = market_of(prices(), rules)
    strategy = PolicyStrategy([agent(market, rules)])
    raw = market.raw_features[BAR].double().numpy()
    strategy.target_weights(window_at(prices(), BAR, 2, np.column_stack([raw, np.ones(len(raw))])), HELD)
    assert strategy.scored_decision is None


def test_recorder_has_the_first_decision_of_each_month_and_the_last_one() -> None:
    source = prices()
    strategy = BasePortfolio(MandateConfig(), feature_names=("return_5",))
    assert isinstance(strategy, ScoredStrategy)
    recorder = DecisionRecorder(strategy)
    market = build_market(source, strategy.feature_names, (0, len(source.times) - 1))
    backtest(recorder, source, MarketPeriod(market, 300, 380, ExecutionRules(), 1e6))
    months = source.times[300:380].astype("datetime64[M]")
    firsts = source.times[300:380][np.r_[True, months[1:] != months[:-1]]]
    assert [decision.time for decision in recorder.monthly_decisions] == list(firsts)
    assert recorder.last_decision is not None
    assert recorder.last_decision.time == source.times[379]
    last = np.nan_to_num(market.raw_features[379, :, 0].double().numpy())
    parts = recorder.last_decision.parts()
    np.testing.assert_array_equal(parts.scores, last)
    np.testing.assert_array_equal(parts.contributions[:, 0], last)
