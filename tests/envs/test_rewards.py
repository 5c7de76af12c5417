"""Rewards against independent formulas in plain numpy."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_envs.trading_envs import PortfolioEnv, make_env

from finrl_pod.errors import ConfigError, InputError
from finrl_pod.market.rewards import SHARPE_PRIOR, Interval, StepReward, log_growth
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from tests.markets import random_market

DOUBLE = torch.float64
EQUITY = np.array([1e6, 1.01e6, 0.97e6, 0.97e6, 1.05e6, 0.9e6])
TURNOVER = np.array([1.0, 0.3, 0.0, 0.2, 0.1])
BASE = np.array([0.004, -0.02, 0.001, 0.05, -0.1])
GROWTH = np.diff(np.log(EQUITY))


def rewards_of(**settings: Any) -> np.ndarray:
    """Rewards of an account with these equities, interval by interval."""
    reward = StepReward(EnvironmentConfig(**settings))
    state = reward.state.initial((1, 1, 1), DOUBLE, torch.device("cpu"))
    result = []
    for i in range(len(EQUITY) - 1):
        numbers = (EQUITY[i], EQUITY[i + 1], TURNOVER[i], BASE[i])
        before, after, turnover, base = (torch.tensor(x, dtype=DOUBLE).view(1, 1, 1) for x in numbers)
        result.append(reward(Interval(before, after, turnover, base), state).item())
        state = None if state is None else reward.state.advance(before, after, state)
    return np.array(result)


# ---------------------------------------------------------------------- formulas


def test_log_returns_sum_to_the_log_growth_of_the_account() -> None:
    market = random_market(2, bars=60, opens=True)
    env = PortfolioEnv(market, EnvironmentConfig(window=40, envs=4, group=2), dtype=torch.float64)
    env.reset(0, stagger=False)
    start, total = env.config.cash, torch.zeros(1, 4, dtype=torch.float64)
    noise = torch.Generator().manual_seed(0)
    for _ in range(39):
        total += env.step(torch.randn(1, 4, 4, generator=noise)).reward
    assert env.state is not None
    prices = market.fill[env.state.bar].repeat_interleave(2, 1)
    end = env.state.cash.reshape(1, 4) + (env.state.shares.reshape(1, 4, 3) * prices).sum(-1)
    assert torch.allclose(total, (end / start).log(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, GROWTH),
        ({"reward": "active_return"}, GROWTH - BASE),
        ({"reward": "mean_variance", "risk_aversion": 1.0}, GROWTH),
        ({"reward": "mean_variance", "risk_aversion": 7.0}, GROWTH - 3 * GROWTH**2),
        ({"reward": "change"}, np.diff(EQUITY) * 1e-4),
    ],
)
def test_rewards_follow_their_formulas(settings: dict[str, Any], expected: np.ndarray) -> None:
    np.testing.assert_allclose(rewards_of(**settings), expected, rtol=1e-12, atol=1e-15)


def test_mean_variance_ranks_lognormal_wealth_as_power_utility_does() -> None:
    """E[W^(1-g)] / (1-g) of a lognormal W, against the mean of r - (g - 1) / 2 r^2 over small intervals."""
    aversion, steps = 5.0, 5_000
    utilities, rewards = [], []
    for mean, deviation in ((0.08, 0.1), (0.1, 0.2), (0.15, 0.25), (0.05, 0.05)):  # of log wealth
        utilities.append(math.exp((1 - aversion) * mean + ((1 - aversion) * deviation) ** 2 / 2) / (1 - aversion))
        step = mean / steps
        rewards.append(mean - (aversion - 1) / 2 * (deviation**2 + steps * step**2))
    assert np.argsort(utilities).tolist() == np.argsort(rewards).tolist()
    certain = np.log((1 - aversion) * np.array(utilities)) / (1 - aversion)  # certainty equivalents of log wealth
    np.testing.assert_allclose(rewards, certain, atol=1e-5)


@pytest.mark.parametrize(("before", "after"), [(1.0, -5.0), (-1.0, 5.0), (-1.0, -5.0), (0.0, 1.0), (1.0, 0.0)])
def test_log_return_is_clamped_for_accounts_at_or_below_zero(before: float, after: float) -> None:
    start = torch.tensor(before, requires_grad=True)
    gain = log_growth(start, torch.tensor(after))
    assert gain.item() == pytest.approx(math.log(1e-6))
    gain.backward()
    assert start.grad is not None
    assert torch.isfinite(start.grad)


# ---------------------------------------------------------------------- differential Sharpe ratio


def test_differential_sharpe_matches_moody_and_saffell() -> None:
    """D = dS/d eta at eta = 0 of the moving Sharpe ratio, here by finite differences."""
    rng = np.random.default_rng(0)
    returns = rng.normal(1e-3, 0.01, 400)
    reward = StepReward(EnvironmentConfig(reward="differential_sharpe"))
    state = reward.state.initial((), DOUBLE, torch.device("cpu"))
    a, b = 0.0, 0.01**2
    eta, step = 1 / 252, 1e-7
    for r in returns:
        before, after = torch.tensor(100.0, dtype=DOUBLE), torch.tensor(100.0 * (1 + r), dtype=DOUBLE)
        assert state is not None
        value = reward(Interval(before, after, before, before), state)

        def sharpe(rate: float, a: float = a, b: float = b, r: float = r) -> float:
            first, second = a + rate * (r - a), b + rate * (r * r - b)
            return first / math.sqrt(second - first * first)

        expected = (sharpe(step) - sharpe(-step)) / (2 * step)
        assert value.item() == pytest.approx(expected, rel=1e-4, abs=1e-6)
        a, b = a + eta * (r - a), b + eta * (r * r - b)
        state = reward.state.advance(before, after, state)
        assert state.tolist() == pytest.approx([a, b], rel=1e-9)


def test_differential_sharpe_weighs_early_and_late_steps_alike() -> None:
    """The derivative of the reward by the return; without a prior moment the second step weighed 180 times more."""
    reward = StepReward(EnvironmentConfig(reward="differential_sharpe"))
    returns = np.random.default_rng(1).normal(5e-4, 0.01, 200)
    state, slopes = reward.state.initial((), DOUBLE, torch.device("cpu")), []
    before = torch.tensor(1.0, dtype=DOUBLE)
    for r in returns:
        after = torch.tensor(1 + r, dtype=DOUBLE, requires_grad=True)
        assert state is not None
        reward(Interval(before, after, before, before), state).backward()
        assert after.grad is not None
        slopes.append(after.grad.item())
        state = reward.state.advance(before, after.detach(), state)
    assert max(slopes) / min(slopes) < 2
    assert slopes[1] / slopes[100] == pytest.approx(1, abs=0.3)


# ---------------------------------------------------------------------- in environments


def test_state_of_the_reward_is_reset_with_its_account() -> None:
    config = EnvironmentConfig(window=5, envs=2, group=1, reward="differential_sharpe")
    env = PortfolioEnv(random_market(3), config)
    env.reset(0, stagger=False)
    action = torch.tensor([0.0, 3.0, 0.0, 0.0]).expand(1, 2, 4)
    for step in range(1, 11):
        env.step(action)
        assert env.state is not None
        assert env.state.reward_state is not None
        first, second = env.state.reward_state.unbind(-1)
        fresh = not bool(first.any())
        assert fresh == (step % 5 == 0)
        if fresh:
            assert torch.equal(second, torch.full_like(second, SHARPE_PRIOR))


def test_state_known_at_the_close_ignores_later_prices() -> None:
    """The reward of a step ends at a fill after the next decision: what is known then may not depend on it."""
    market = random_market(4, bars=40, opens=True)
    config = EnvironmentConfig(window=20, envs=2, group=1, reward="differential_sharpe")
    starts = [torch.tensor([5])]
    known, later = [], []
    for factor in (1.0, 1.1):
        fill = market.fill.clone()
        fill[12:] *= factor  # of decisions from bar 12 on, in bar 13
        env = PortfolioEnv(dataclasses.replace(market, fill=fill), config, starts=starts, dtype=DOUBLE)
        env.reset(0, stagger=False)
        action = torch.zeros(1, 2, 4, dtype=DOUBLE)
        for _ in range(7):
            env.step(action)
        assert env.state is not None
        assert env.state.reward_state is not None
        assert bool((env.state.bar == 12).all())
        later.append(env.state.reward_state[0])
        known.append(env.state.reward_state[1])
    assert torch.equal(known[0], known[1])
    assert not torch.allclose(later[0], later[1])


@pytest.mark.parametrize("mandate", [None, MandateConfig(base="equal_weight")])
def test_base_growth_is_that_of_the_base_without_costs(mandate: MandateConfig | None) -> None:
    market = random_market(5, bars=40, opens=True, gaps=0.2)
    config = EnvironmentConfig(window=20, envs=4, group=2, cost_bps=0.0)
    plain, active = (
        make_env(market, dataclasses.replace(config, reward=name), mandate=mandate, dtype=DOUBLE)
        for name in ("log_return", "active_return")
    )
    plain.reset(1)
    active.reset(1)
    fill, tradable = market.fill.numpy(), market.tradable.numpy()
    for _ in range(12):
        assert plain.state is not None
        bar = plain.state.bar[0].repeat_interleave(2).numpy()
        action = torch.zeros(1, 4, plain.action_size, dtype=DOUBLE)
        difference = (plain.step(action).reward - active.step(action).reward)[0].numpy()
        weights = tradable[bar] / np.maximum(tradable[bar].sum(1, keepdims=True), 1)
        growth = np.log(1 + (weights * (fill[bar + 1] / fill[bar] - 1)).sum(1))
        np.testing.assert_allclose(difference, growth, atol=1e-12)


def test_holding_the_base_earns_no_active_return_but_for_costs() -> None:
    """Equal weights held by daily rebalancing, filled at the closes that they are sized at."""
    market = random_market(6, bars=60, fill="same_close")
    config = EnvironmentConfig(
        window=30, envs=2, group=1, cost_bps=0.0, reward="active_return", fill="same_close", leverage=1.0
    )
    env = PortfolioEnv(market, config, dtype=DOUBLE)
    env.reset(0)
    action = torch.tensor([-40.0, 0.0, 0.0, 0.0], dtype=DOUBLE).expand(1, 2, 4)
    for _ in range(10):
        assert env.step(action).reward.abs().max() < 1e-12


@pytest.mark.parametrize(
    "settings",
    [
        {"reward": "active_return"},
        {"reward": "mean_variance", "risk_aversion": 6.0},
    ],
)
def test_kernels_give_the_rewards_of_the_definition(settings: dict[str, Any]) -> None:
    market = random_market(7, bars=50, opens=True)
    config = EnvironmentConfig(window=12, envs=6, group=3, **settings)
    env = PortfolioEnv(market, config, members=(0, 1), dtype=DOUBLE)
    env.reset(0)
    noise = torch.Generator().manual_seed(3)
    for _ in range(15):
        action = torch.randn(2, 6, 4, generator=noise, dtype=DOUBLE)
        assert env.state is not None
        expected = env.transition(env.state, action)[1].reward
        torch.testing.assert_close(env.step(action).reward, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"reward": "active_return"},
        {"reward": "mean_variance", "risk_aversion": 6.0},
        {"reward": "change"},
        {"reward": "differential_sharpe"},
    ],
)
@pytest.mark.parametrize("mandate", [None, MandateConfig()])
def test_rewards_are_differentiated_exactly(settings: dict[str, Any], mandate: MandateConfig | None) -> None:
    """Gradients of summed rewards by the first action, against central differences in float64."""
    market = random_market(8, bars=30, opens=True, volatility=0.03)
    config = EnvironmentConfig(window=12, envs=2, group=2, **settings)
    env = make_env(market, config, mandate=mandate, starts=[torch.tensor([4])], dtype=DOUBLE)

    def total(action: torch.Tensor) -> torch.Tensor:
        env.reset(0, stagger=False)
        sums = torch.zeros((), dtype=DOUBLE)
        for step in range(5):
            later = 0.3 * torch.ones_like(action) * step
            later[..., 0] = -1.0
            sums = sums + env.step_differentiable(action if step == 0 else later).reward.sum()
        return sums

    action = torch.randn(1, 2, env.action_size, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    action.requires_grad_()
    (gradient,) = torch.autograd.grad(total(action), action)
    numeric = torch.zeros_like(gradient)
    with torch.no_grad():
        for i in range(action.numel()):
            nudge = torch.zeros_like(action).view(-1)
            nudge[i] = 1e-6
            nudge = nudge.view_as(action)
            numeric.view(-1)[i] = (total(action + nudge) - total(action - nudge)) / 2e-6
    torch.testing.assert_close(gradient, numeric, rtol=1e-5, atol=1e-9)
    assert gradient.abs().max() > 1e-6


# ---------------------------------------------------------------------- users' rewards and refusals

USER = """
import torch

def cautious(interval):
    growth = torch.log(interval.after / interval.before)
    return growth - interval.base_growth - 0.1 * interval.turnover

def nan(interval):
    return interval.after * float("nan")

def late(interval):
    return interval.after * (1.0 if interval.after.numel() == 2 else float("nan"))

def narrow(interval):
    return interval.after.sum()

def text(interval):
    return "good"

def failing(interval):
    return interval.profit

def constant(interval):
    return torch.ones_like(interval.after)

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(USER)
    return path


def test_a_users_reward_is_called_with_the_interval(file: Path) -> None:
    market = random_market(9, bars=40)
    config = EnvironmentConfig(window=10, envs=4, group=2, reward=f"{file}:cautious")
    check_settings("environment.", config)
    mine = PortfolioEnv(market, config, dtype=DOUBLE)
    plain = PortfolioEnv(market, dataclasses.replace(config, reward="active_return"), dtype=DOUBLE)
    mine.reset(0)
    plain.reset(0)
    for _ in range(12):
        action = torch.zeros(1, 4, 4, dtype=DOUBLE)
        expected = plain.step(action)
        torch.testing.assert_close(mine.step(action).reward, expected.reward - 0.1 * expected.turnover)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nan", "finite numbers, got NaN or infinity for 2 of 2 accounts"),
        ("narrow", r"tensor of shape \(1, 1, 2\), one number per account, got \(\)"),
        ("text", "got str"),
        ("failing", "failed: AttributeError"),
    ],
)
def test_a_users_reward_that_fails_is_refused_before_a_step(file: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        PortfolioEnv(random_market(9, bars=40), EnvironmentConfig(reward=f"{file}:{name}"))


def test_a_users_reward_that_fails_later_is_refused_then(file: Path) -> None:
    config = EnvironmentConfig(window=10, envs=4, group=2, reward=f"{file}:late")
    env = PortfolioEnv(random_market(9, bars=40), config)
    env.reset(0)
    with pytest.raises(InputError, match="NaN or infinity for 4 of 4 accounts"):
        env.step(torch.zeros(1, 4, 4))


def test_a_users_reward_without_gradient_is_refused_by_algorithms_that_need_one(file: Path) -> None:
    config = EnvironmentConfig(window=10, envs=4, group=2, reward=f"{file}:constant")
    env = PortfolioEnv(random_market(9, bars=40), config)
    env.reset(0)
    with pytest.raises(InputError, match="by torch operations"):
        env.step_differentiable(torch.zeros(1, 4, 4, requires_grad=True))


@pytest.mark.parametrize(
    ("reward", "message"),
    [("absent.py:mine", "there is no file absent.py"), ("{file}:absent", "has no absent")],
)
def test_a_users_reward_that_is_missing_is_refused(file: Path, reward: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        PortfolioEnv(random_market(9), EnvironmentConfig(reward=reward.format(file=file)))
    with pytest.raises(InputError, match="must be a function, got int"):
        PortfolioEnv(random_market(9), EnvironmentConfig(reward=f"{file}:number"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward": "profit"}, "got 'profit'"),
        ({"risk_aversion": 0.5}, "risk_aversion"),
    ],
)
def test_settings_in_conflict_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PortfolioEnv(random_market(3), EnvironmentConfig(**settings))
