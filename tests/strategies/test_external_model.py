"""Models of other libraries: the same decisions in a Gymnasium view and in a backtest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_app.evaluation.champions import strategy_identity

import finrl_pod as fp
from finrl_pod.errors import InputError


class Linear:
    """Actions are a fixed, squashed linear function of the observation."""

    def __init__(self, env: Any, seed: int = 0) -> None:
        size = getattr(env.action_space, "n", None) or env.action_space.shape[0]
        self.discrete = hasattr(env.action_space, "n")
        shape = (int(size), env.observation_space.shape[0])
        self.weights = np.random.default_rng(seed).normal(0, 0.02, shape).astype(np.float32)

    def predict(self, observation: Any, deterministic: bool = False) -> tuple[Any, None]:
        assert deterministic
        assert observation.dtype == np.float32
        scores = self.weights @ observation
        return (np.argmax(scores) if self.discrete else np.tanh(scores)), None


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mandate.base": "none"},
        {"mandate.base": "none", "environment.short": True},
        {"mandate.base": "none", "environment.kind": "stock_trading"},
        {"mandate.base": "none", "environment.kind": "discrete", "agent.algorithm": "dqn", "agent.policy": "mlp"},
        {"environment.delay": 2},
    ],
)
def test_a_backtest_repeats_the_episode_of_the_view(settings: dict[str, Any]) -> None:
    market = fp.make_market("sample", settings=settings)
    env = market.gym(split="validation")
    model = Linear(env)
    observation, _ = env.reset(seed=3)
    equity, times, done = [], [], False
    while not done:
        observation, _, terminated, truncated, info = env.step(model.predict(observation, deterministic=True)[0])
        equity.append(info["equity"])
        times.append(info["time"][:10])
        done = terminated or truncated
    days = market.panel.times.astype("datetime64[D]").astype(str)
    start = days[int(np.flatnonzero(days == times[0])[0]) - 1]
    tested = fp.backtest(model, market, start=start, end=times[-1])
    np.testing.assert_allclose(tested.result.equity[1:], equity, rtol=1e-3)  # the view computes in float32
    assert tested.result.name == "Linear"


@pytest.mark.slow
def test_training_bars_are_in_sample_and_the_test_is_a_look() -> None:
    market = fp.make_market("sample")
    model = Linear(market.gym())
    assert fp.backtest(model, market, split="train").in_sample is not None
    assert fp.backtest(model, market).in_sample is None
    assert fp.backtest(model, market).looks is None
    assert fp.backtest(model, market, split="test").looks is not None


def test_models_with_other_weights_are_other_subjects() -> None:
    market = fp.make_market("sample")

    class Network(Linear):
        def __init__(self, seed: int) -> None:
            super().__init__(market.gym(), seed)
            self.policy = torch.nn.Linear(2, 1)
            torch.nn.init.constant_(self.policy.weight, seed)
            torch.nn.init.zeros_(self.policy.bias)

    one, same, other = (strategy_identity(market.strategy(Network(seed))) for seed in (1, 1, 2))
    assert one == same != other
    unknown = [strategy_identity(market.strategy(Linear(market.gym()))) for _ in range(2)]
    assert unknown[0] != unknown[1]


@pytest.mark.slow
def test_a_model_needs_its_market_and_valid_actions() -> None:
    market = fp.make_market("sample")
    model = Linear(market.gym())
    with pytest.raises(InputError, match=r"Linear, is tested on the market .*: fp\.backtest\(model, market\)"):
        fp.backtest(model)
    with pytest.raises(InputError, match=r"needs a method predict\(observation, deterministic=True\), dict has none"):
        market.strategy({})  # type: ignore[arg-type]
    model.weights = model.weights[:3]
    with pytest.raises(InputError, match=r"predict\(\) of Linear must return 20 finite actions .* got array"):
        fp.backtest(model, market)
    assert repr(market.strategy(model, "mine")).startswith("PolicyStrategy('mine'")


@pytest.mark.slow
def test_a_look_is_not_counted_for_a_backtest_that_fails() -> None:
    market = fp.make_market("sample")

    class Fails:
        def target_weights(self, window: Any, positions: Any) -> Any:
            raise ZeroDivisionError

    class Holds:
        def __init__(self, share: float) -> None:
            self.share = share

        def target_weights(self, window: Any, positions: Any) -> Any:
            return np.full(len(positions.weights), self.share)

    before = fp.backtest(Holds(0.01), market, split="test").looks
    with pytest.raises(InputError, match="ZeroDivisionError"):
        fp.backtest(Fails, market, split="test")
    after = fp.backtest(Holds(0.02), market, split="test").looks
    assert before is not None
    assert after == before + 1
