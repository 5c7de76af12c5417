"""The gradient kernel against autograd through `MarketEnv.transition`."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from finrl_pod_envs import market_env
from finrl_pod_envs.observation import EnvState
from finrl_pod_envs.trading_envs import PortfolioEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.native.prebuild import find_compiler
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import EnvStep
from tests.envs.kernel_settings import KERNEL_SETTINGS
from tests.mandates import mandates, with_random_base
from tests.markets import turbulent_market

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")

STEPS, BARS = 9, 30
EARLY_RUIN = 0.97  # ruins accounts early, so that resets are covered
configs = st.builds(EnvironmentConfig, **KERNEL_SETTINGS)


def make_portfolio_env(
    seed: int,
    config: EnvironmentConfig,
    assets: int,
    members: tuple[int, ...],
    dtype: torch.dtype,
    gaps: bool,
    mandate: MandateConfig | None = None,
) -> PortfolioEnv:
    market = turbulent_market(seed, BARS, assets, config.fill, gaps, spreads=True)
    if mandate is not None and mandate.base == "random":
        market = with_random_base(market, seed)
    return PortfolioEnv(market, config, members=members, dtype=dtype, mandate=mandate)


def run_actions(env: PortfolioEnv, seed: int, actions: torch.Tensor) -> tuple[list[EnvStep], list[EnvState]]:
    """Reset, step through the actions and return the results and states of all steps."""
    env.reset(seed)
    steps, states = [], []
    for action in actions:
        steps.append(env.step_differentiable(action))
        assert env.state is not None
        states.append(env.state)
    return steps, states


def weighted_sum(steps: list[EnvStep], states: list[EnvState], generator: torch.Generator) -> torch.Tensor:
    """Random weighted sum of all differentiable outputs."""
    total = torch.zeros((), dtype=steps[0].reward.dtype)
    for step in steps:
        for x in (step.reward * 100, step.observation.account, step.final_observation.account):
            total = total + (x * torch.randn(x.shape, generator=generator, dtype=x.dtype)).sum()
    last = states[-1]
    for x in (last.cash * 1e-6, last.shares * 1e-4, *([] if last.virtual is None else [last.virtual])):
        total = total + (x * torch.randn(x.shape, generator=generator, dtype=x.dtype)).sum()
    return total


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    config=configs,
    assets=st.sampled_from([1, 3, 8, 11, 20]),
    members=st.sampled_from([(0,), (0, 5)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    gaps=st.booleans(),
    mandate=mandates,
)
def test_values_and_gradients_match_autograd(
    seed: int,
    config: EnvironmentConfig,
    assets: int,
    members: tuple[int, ...],
    dtype: torch.dtype,
    gaps: bool,
    mandate: MandateConfig,
) -> None:
    mandate = dataclasses.replace(mandate, max_weight=1.0, max_turnover=0.0)  # others use autograd
    kernel, reference = (make_portfolio_env(seed, config, assets, members, dtype, gaps, mandate) for _ in range(2))
    assert kernel._gradient is not None
    reference._gradient = None
    generator = torch.Generator().manual_seed(seed)
    actions = torch.randn(STEPS, len(members), 30, kernel.action_size, generator=generator, dtype=dtype) * 2
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(market_env, "RUIN", EARLY_RUIN)
        for env in (kernel, reference):
            mine = actions.clone().requires_grad_()
            steps, states = run_actions(env, seed, mine)
            total = weighted_sum(steps, states, torch.Generator().manual_seed(1))
            results.append((steps, states, torch.autograd.grad(total, mine)[0]))
    (steps, states, gradient), (expected_steps, expected_states, expected) = results
    tolerance = 1e-9 if dtype == torch.float64 else 3e-4
    for one, other in zip(states, expected_states, strict=True):
        assert torch.equal(one.bar, other.bar)
        assert torch.equal(one.steps_left, other.steps_left)
        assert torch.equal(one.episode_index, other.episode_index)
        torch.testing.assert_close(one.cash, other.cash, rtol=tolerance, atol=tolerance * 1e6)
        torch.testing.assert_close(one.shares, other.shares, rtol=tolerance, atol=tolerance * 1e4)
        torch.testing.assert_close(one.virtual, other.virtual, rtol=tolerance, atol=tolerance)
    for one, other in zip(steps, expected_steps, strict=True):
        assert torch.equal(one.truncated, other.truncated)
        assert torch.equal(one.terminated, other.terminated)
        assert torch.equal(one.observation.bar, other.observation.bar)
        assert torch.equal(one.final_observation.bar, other.final_observation.bar)
        for mine, theirs in zip(tensors_of(one), tensors_of(other), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
        assert not one.equity.requires_grad
        assert not other.cost.requires_grad
    if dtype == torch.float64:  # in float32, rounding may decide whether an asset is bought or sold
        torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-9)
    else:
        assert float((gradient - expected).norm()) <= 0.02 * float(expected.norm()) + 5e-3
    assert torch.isfinite(gradient).all()


def tensors_of(step: EnvStep) -> list[torch.Tensor]:
    accounts = (step.observation.account, step.final_observation.account)
    return [*accounts, step.reward, step.turnover, step.equity * 1e-6, step.cost * 1e-6]


@pytest.mark.parametrize("reward", ["log_return", "change"])
def test_gradient_matches_finite_differences(reward: str) -> None:
    config = EnvironmentConfig(window=30, envs=2, group=2, cost_bps=30.0, reward=reward)  # type: ignore[arg-type]
    env = make_portfolio_env(0, config, 3, (0,), torch.float64, gaps=False)
    assert env._gradient is not None

    def total(actions: torch.Tensor) -> torch.Tensor:
        steps, _ = run_actions(env, 0, actions)
        return torch.stack([step.reward for step in steps])

    actions = 0.5 * torch.randn(3, 1, 2, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.autograd.gradcheck(total, actions.requires_grad_(), eps=1e-6, atol=1e-6, rtol=1e-4)


def test_detach_cuts_the_gradient() -> None:
    env = make_portfolio_env(0, EnvironmentConfig(window=30, envs=4, group=2), 3, (0,), torch.float64, gaps=False)
    env.reset(0)
    action = torch.zeros(1, 4, 4, dtype=torch.float64).requires_grad_()
    env.step_differentiable(action)
    env.detach()
    later = env.step_differentiable(torch.zeros(1, 4, 4, dtype=torch.float64).requires_grad_())
    (gradient,) = torch.autograd.grad(later.reward.sum(), action, allow_unused=True)
    assert gradient is None
