"""Windows, resets, episode ends and seeding."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from finrl_pod_envs.market_env import RUIN, MarketEnv
from finrl_pod_envs.trading_envs import PortfolioEnv, StockTradingEnv

from finrl_pod.errors import ConfigError, InputError
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import EnvStep, MarketTensor
from tests.markets import random_market

MARKET = random_market(1, bars=60)
CONFIG = EnvironmentConfig(window=7, envs=6, group=3)


def portfolio_env(market: MarketTensor = MARKET, config: EnvironmentConfig = CONFIG, **kwargs: Any) -> PortfolioEnv:
    return PortfolioEnv(market, config, **kwargs)


def play(env: MarketEnv, steps: int, seed: int = 0, **reset: Any) -> list[EnvStep]:
    """Step with random actions from a fixed generator."""
    env.reset(seed, **reset)
    noise = torch.Generator().manual_seed(9)
    shape = (env.members, env.envs, env.action_size)
    return [env.step(torch.randn(shape, generator=noise)) for _ in range(steps)]


def crashing_market(bars: int = 30, crash: int = 5) -> MarketTensor:
    """One asset that loses 99.9% between bar `crash` and the next."""
    market = random_market(0, bars=bars, assets=1, volatility=0.0)
    factor = torch.where(torch.arange(bars) > crash, 1e-3, 1.0).unsqueeze(-1)
    fill = torch.cat([(market.close * factor)[1:], (market.close * factor)[-1:]])
    return dataclasses.replace(market, close=market.close * factor, fill=fill)


def test_window_end_is_truncation_not_termination() -> None:
    outcomes = play(portfolio_env(), 21, stagger=False)
    for t, outcome in enumerate(outcomes, 1):
        assert bool(outcome.truncated.all()) == bool(outcome.truncated.any()) == (t % 7 == 0)
        assert not outcome.terminated.any()


def test_final_observation_belongs_to_the_ended_window() -> None:
    env = portfolio_env()
    bar = env.reset(3, stagger=False).bar
    outcomes = play(env, 7, seed=3, stagger=False)
    for before_end in outcomes[:-1]:
        assert torch.equal(before_end.final_observation.bar, before_end.observation.bar)
        assert torch.equal(before_end.final_observation.account, before_end.observation.account)
    end = outcomes[-1]
    assert torch.equal(end.final_observation.bar, bar + 7)
    assert (end.final_observation.account[..., 1:] > 0).all()
    account = end.observation.account
    assert torch.equal(account[..., 0], torch.ones(1, 6)), "a new window starts in cash"
    assert not account[..., 1:].any()
    assert not torch.equal(end.observation.bar, end.final_observation.bar)


def test_ruin_terminates_one_account_and_not_its_group() -> None:
    config = EnvironmentConfig(window=20, envs=2, group=2, cost_bps=0)
    env = portfolio_env(crashing_market(), config, first=2, last=21)
    env.reset(0, stagger=False)
    all_in, all_cash = [-50.0, 50.0], [50.0, -50.0]
    action = torch.tensor([[all_in, all_cash]])
    for _ in range(3):  # decisions at bars 2, 3, 4; the last position is held through the crash after bar 5
        outcome = env.step(action)
        assert not outcome.terminated.any()
    outcome = env.step(action)
    assert outcome.terminated.tolist() == [[True, False]]
    assert not outcome.truncated.any()
    assert outcome.equity[0, 0] <= RUIN * config.cash
    assert outcome.final_observation.account[0, 0, 1] > 0.99
    assert outcome.observation.account[0, 0].tolist() == [1.0, 0.0], "the ruined account restarts in cash"
    assert torch.equal(outcome.observation.bar, outcome.final_observation.bar), "the window of its group continues"


def test_ruin_in_the_last_step_is_termination_not_truncation() -> None:
    env = portfolio_env(crashing_market(), EnvironmentConfig(window=4, envs=1, group=1), first=2, last=5)
    env.reset(0, stagger=False)
    ends = [env.step(torch.tensor([[[-50.0, 50.0]]])) for _ in range(4)][-1]
    assert bool(ends.terminated)
    assert not bool(ends.truncated)


@pytest.mark.parametrize("stagger", [False, True])
def test_decision_days_span_first_to_last(stagger: bool) -> None:
    env = portfolio_env(first=10, last=24)
    bars = {int(d) for d in env.reset(0, stagger=stagger).bar.flatten()}
    for outcome in play(env, 300, stagger=stagger):
        bars |= {int(d) for d in outcome.observation.bar.flatten()}
        assert outcome.final_observation.bar.max() <= 25
    assert (min(bars), max(bars)) == (10, 24)


def test_default_bounds_cover_all_bars_with_fills() -> None:
    env = portfolio_env(dataclasses.replace(MARKET, first=4), first=0)
    assert (env.first, env.last) == (4, MARKET.steps - 1)
    assert portfolio_env(config=dataclasses.replace(CONFIG, window=1000)).episode_bars == MARKET.steps


def test_stagger_gives_first_episodes_different_lengths() -> None:
    env = portfolio_env(envs=32, group=1)
    ends = torch.stack([outcome.truncated[0] for outcome in play(env, 7)])
    assert ends.any(1).sum() >= 5
    assert ends.sum(0).eq(1).all(), "each lane ends once per window length"


def test_accounts_of_a_group_share_the_day_and_groups_differ() -> None:
    env = portfolio_env(envs=12, group=4)
    first = env.reset(0)
    assert first.bar.shape == (1, 3)
    outcome = env.step(torch.zeros(1, 12, 4))
    assert outcome.observation.bar.shape == (1, 3)
    # Equal actions within a group have equal rewards, because the market data are the same.
    gains = outcome.reward.reshape(3, 4)
    assert torch.equal(gains, gains[:, :1].expand(3, 4))
    assert len({float(g) for g in gains[:, 0]}) == len(set(first.bar[0].tolist())) > 1


def test_episodes_depend_on_the_seed_only() -> None:
    runs = [play(portfolio_env(), 20, seed) for seed in (5, 5, 6)]
    for a, b in zip(runs[0], runs[1], strict=True):
        assert torch.equal(a.reward, b.reward)
        assert torch.equal(a.observation.bar, b.observation.bar)
    assert any(not torch.equal(a.observation.bar, c.observation.bar) for a, c in zip(runs[0], runs[2], strict=True))


def test_reset_clears_all_state() -> None:
    env = portfolio_env()
    first, repeated = [play(env, 20, 4)[-1] for _ in range(2)]
    assert torch.equal(first.equity, repeated.equity)


def test_window_starts_of_a_member_do_not_depend_on_the_population() -> None:
    population = portfolio_env(members=(0, 3, 7))
    bars = [population.reset(2).bar]
    bars += [population.step(torch.zeros(3, 6, 4)).observation.bar for _ in range(30)]
    for row, member in enumerate((0, 3, 7)):
        alone = portfolio_env(members=(member,))
        bars_alone = [alone.reset(2).bar]
        bars_alone += [alone.step(torch.zeros(1, 6, 4)).observation.bar for _ in range(30)]
        assert all(torch.equal(a[0], b[row]) for a, b in zip(bars_alone, bars, strict=True))
    assert not torch.equal(bars[0][0], bars[0][1])


def test_windows_continue_after_all_sampled_starts_are_used() -> None:
    env = portfolio_env(config=dataclasses.replace(CONFIG, window=1))
    for outcome in play(env, 260):
        assert outcome.truncated.all()
        assert outcome.observation.bar.min() >= env.first
        assert outcome.observation.bar.max() <= env.last


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"envs": 5}, "multiple of environment.group"),
        ({"cost_bps": -1.0}, "environment.cost_bps"),
        ({"cash": 0.0}, "environment.cash"),
        ({"window": 0}, "environment.window"),
        ({"leverage": 0.0}, "environment.leverage"),
        ({"turbulence_limit": 1.0}, "needs a market with turbulence"),
        ({"fill": "same_close"}, "built for fills at 'next'"),
        ({"reward": "profit"}, "must be one of log_return, active_return"),
    ],
)
def test_settings_out_of_range_are_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        portfolio_env(config=dataclasses.replace(CONFIG, **change))


def test_range_without_decision_bars_is_rejected() -> None:
    with pytest.raises(ConfigError, match="at least one decision bar"):
        portfolio_env(first=58, last=59)


def test_wrong_action_shape_raises_with_both_shapes() -> None:
    env = StockTradingEnv(MARKET, dataclasses.replace(CONFIG, kind="stock_trading"))
    with pytest.raises(InputError, match="call reset"):
        env.step(torch.zeros(1, 6, 3))
    env.reset(0)
    with pytest.raises(InputError, match=r"\(1, 6, 3\).*got \(6, 3\)"):
        env.step(torch.zeros(6, 3))


def test_episodes_start_at_the_given_bars_of_each_member() -> None:
    allowed = [torch.tensor([3, 3, 3, 9]), torch.tensor([7])]
    env = portfolio_env(members=(0, 5), starts=allowed)
    started: list[set[int]] = [set(), set()]
    for seed in range(8):
        env.reset(seed, stagger=False)
        for _ in range(60):
            step = env.step(torch.zeros(2, env.envs, env.action_size))
            for member in range(2):
                ended = step.truncated[member].view(env.groups, -1)[:, 0]
                started[member] |= set(step.observation.bar[member][ended].tolist())
    assert started == [{3, 9}, {7}]


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([[3], [4]], "of 1 members, got 2"),
        ([[]], "one or more bars"),
        ([[10_000]], "which leave a window"),
        ([[-1]], "which leave a window"),
    ],
)
def test_start_bars_that_leave_no_window_are_refused(starts: list[list[int]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        portfolio_env(starts=[torch.tensor(bars, dtype=torch.int64) for bars in starts])
