"""The step kernel against `MarketEnv.transition`, from the same state with the same action."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from finrl_pod_envs import market_env, observation
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.observation import EnvState
from finrl_pod_envs.trading_envs import PortfolioEnv, make_env
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.native.prebuild import find_compiler
from finrl_pod.settings.run import EnvironmentConfig, GroupConfig, MandateConfig
from finrl_pod.types import EnvStep
from tests.envs.kernel_settings import KERNEL_SETTINGS
from tests.mandates import fitting, mandates, with_random_base
from tests.markets import random_market, turbulent_market

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")

STEPS, BARS = 14, 30
EARLY_RUIN = 0.97  # ruins accounts early, so that resets are covered
configs = st.builds(
    EnvironmentConfig,
    kind=st.sampled_from(["portfolio", "stock_trading"]),
    buy_allocation=st.sampled_from(["proportional", "sequential"]),
    whole_shares=st.booleans(),
    hmax=st.sampled_from([100.0, 5000.0]),
    **KERNEL_SETTINGS,
)


def step_both_ways(env: MarketEnv, state: EnvState, action: torch.Tensor) -> list[tuple[EnvState, EnvStep]]:
    assert env._native is not None
    return [env.transition(state, action), env._native(state, action, env._starts, market_env.RUIN)]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    config=configs,
    assets=st.sampled_from([1, 3, 4, 8, 11, 30]),
    members=st.sampled_from([(0,), (0, 5)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    gaps=st.booleans(),
    mandate=mandates,
)
def test_kernel_matches_transition(
    seed: int,
    config: EnvironmentConfig,
    assets: int,
    members: tuple[int, ...],
    dtype: torch.dtype,
    gaps: bool,
    mandate: MandateConfig,
) -> None:
    if config.kind == "stock_trading":
        mandate = MandateConfig(base="none")
    if config.whole_shares:  # in float32, rounding may change either result by a share
        dtype = torch.float64
    market = turbulent_market(seed, BARS, assets, config.fill, gaps, spreads=True)
    if mandate.base == "random":
        market = with_random_base(market, seed)
    env = make_env(market, config, members=members, dtype=dtype, mandate=fitting(mandate, assets))
    env.reset(seed)
    generator = torch.Generator().manual_seed(seed)
    tolerance = 1e-9 if dtype == torch.float64 else 2e-5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(market_env, "RUIN", EARLY_RUIN)
        for _ in range(STEPS):
            action = torch.randn(len(members), 30, env.action_size, generator=generator, dtype=dtype) * 2
            assert env.state is not None
            (state, plain), (native_state, native) = step_both_ways(env, env.state, action)
            # Cash is a difference of sums that are a thousand times larger.
            torch.testing.assert_close(native_state.cash, state.cash, rtol=0, atol=tolerance * config.cash)
            # In float32, a sequential purchase of the remaining cash also spends its rounding error.
            rounding = 5 if config.buy_allocation == "sequential" and dtype == torch.float32 else 1
            torch.testing.assert_close(
                native_state.shares, state.shares, rtol=10 * tolerance, atol=100 * rounding * tolerance
            )
            for one, other in ((native_state.virtual, state.virtual), (native_state.budget, state.budget)):
                assert (one is None) == (other is None)
                if one is not None:
                    torch.testing.assert_close(one, other, rtol=0, atol=10 * tolerance)
            for name in ("bar", "steps_left", "episode_index"):
                assert torch.equal(getattr(native_state, name), getattr(state, name))
            for name in ("terminated", "truncated"):
                assert torch.equal(getattr(native, name), getattr(plain, name))
            for name in ("reward", "turnover"):
                torch.testing.assert_close(getattr(native, name), getattr(plain, name), rtol=0, atol=100 * tolerance)
            for name in ("equity", "cost"):
                atol = tolerance * config.cash
                torch.testing.assert_close(getattr(native, name), getattr(plain, name), rtol=0, atol=atol)
            for one, other in (
                (native.observation, plain.observation),
                (native.final_observation, plain.final_observation),
            ):
                assert torch.equal(one.bar, other.bar)
                torch.testing.assert_close(one.account, other.account, rtol=0, atol=10 * tolerance)
            env.set_state(state)


def test_nan_score_under_a_mandate_keeps_its_holdings() -> None:
    env = make_env(
        random_market(assets=9, bars=BARS), EnvironmentConfig(envs=4, group=2, window=6), mandate=MandateConfig()
    )
    env.reset(0, stagger=False)
    env.step(torch.zeros(1, 4, env.action_size))
    before = env.state
    assert before is not None
    action = torch.zeros(1, 4, env.action_size)
    action[0, 1, 3] = torch.nan
    for state, step in step_both_ways(env, before, action):
        kept = (state.shares == before.shares).all(-1).flatten()
        assert kept.tolist() == [False, True, False, False]
        assert torch.isfinite(step.equity).all()


def test_nan_action_affects_its_own_account_only() -> None:
    env = make_env(random_market(assets=9, bars=BARS), EnvironmentConfig(envs=4, group=2, window=6))
    env.reset(0)
    action = torch.zeros(1, 4, env.action_size)
    action[0, 1, 3] = torch.nan
    assert env.state is not None
    for _, step in step_both_ways(env, env.state, action):
        assert torch.isnan(step.equity).tolist() == [[False, True, False, False]]


def test_step_does_not_change_its_input_state() -> None:
    market, config = random_market(assets=9, bars=BARS), EnvironmentConfig(envs=4, group=2, window=6)
    for mandate in (None, MandateConfig(max_turnover=1.0)):
        env = make_env(market, config, mandate=mandate)
        env.reset(0)
        before = numbers_of(env.state)
        copies = [x.clone() for x in before]
        env.step(torch.randn(1, 4, env.action_size, generator=torch.Generator().manual_seed(0)))
        assert all(torch.equal(a, b) for a, b in zip(before, copies, strict=True))


def test_unsupported_settings_use_torch() -> None:
    market = random_market(bars=BARS)
    config = EnvironmentConfig(envs=4, group=2, window=6)
    assert make_env(market, config)._native is not None
    assert make_env(market, dataclasses.replace(config, half_spread_bps=2.0))._native is not None
    others: tuple[dict[str, Any], ...] = ({"short": True}, {"leverage": 1.5}, {"leverage": 0.5}, {"delay": 2})
    for change in (
        *others,
        {"reward": "differential_sharpe"},
        {"per_share": 0.01},
        {"cash_rates": (("2020-01-01", 0.01),)},
    ):
        assert make_env(market, dataclasses.replace(config, **change))._native is None

    class Idle(PortfolioEnv):
        """A subclass could override how trades are computed."""

    assert Idle(market, config)._native is None
    assert make_env(market, config, mandate=MandateConfig())._native is not None
    groups = (GroupConfig("first", ("S0", "S1")),)
    for limit in (
        {"volatility_target": 0.1},
        {"max_holdings": 3},
        {"min_position": 0.3},
        {"max_group_weight": 0.5, "groups": groups},
        {"group_neutral": True, "groups": groups},
    ):
        assert make_env(market, config, mandate=MandateConfig(**limit))._native is None


def test_an_environment_is_freed_with_its_last_reference() -> None:
    """Without the garbage collector: its tables are as large as the market's."""
    env = make_env(random_market(0, bars=BARS), EnvironmentConfig(kind="portfolio", envs=2, window=4))
    env.reset(0)
    env.step(torch.zeros(1, 2, env.action_size))
    assert env._native is not None
    left = weakref.ref(env)
    del env
    assert left() is None


def test_step_with_gradients_uses_torch() -> None:
    env = make_env(random_market(bars=BARS), EnvironmentConfig(envs=4, group=2, window=6))
    env.reset(0)
    action = torch.zeros(1, 4, env.action_size, requires_grad=True)
    env.step(action).reward.sum().backward()
    assert action.grad is not None
    assert bool((action.grad != 0).any())


@pytest.mark.parametrize(("envs", "group"), [(1, 1), (12, 4), (27, 9), (64, 32)])
def test_flat_observations_match_torch(envs: int, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full blocks of rows and a remainder, into a new tensor and into unaligned memory."""
    market = random_market(assets=5, features=3, bars=BARS)
    env = make_env(market, EnvironmentConfig(envs=envs, group=group, window=6), members=(0, 3))
    first = env.reset(0)
    fast = observation.flat(market, first)
    buffer = torch.zeros(fast.numel() + 1)[1:].view(fast.shape)
    assert observation.flat(market, first, out=buffer) is buffer
    monkeypatch.setattr(observation, "load", lambda *_: None)
    plain = observation.flat(market, first)
    assert torch.equal(fast, plain)
    assert torch.equal(buffer, plain)
    assert torch.equal(plain[..., : first.account.shape[-1]], first.account)


@pytest.mark.parametrize(
    ("envs", "group", "dtype"), [(12, 4, None), (27, 9, None), (150, 75, None), (12, 4, torch.float64)]
)
def test_step_writes_flat_observations(envs: int, group: int, dtype: torch.dtype | None) -> None:
    """Also after resets, and through `flat` for a dtype that the kernel does not support."""
    market = random_market(assets=9, features=3, bars=BARS, volatility=0.03)
    env = make_env(market, EnvironmentConfig(envs=envs, group=group, window=6), members=(0, 3), dtype=dtype)
    env.reset(0)
    rows = torch.full((2, envs, observation.flat_size(market)), torch.nan, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    ended = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(market_env, "RUIN", EARLY_RUIN)
        for _ in range(STEPS):
            outcome = env.step(torch.randn(2, envs, env.action_size, generator=generator, dtype=dtype) * 2, rows)
            assert torch.equal(rows, observation.flat(market, outcome.observation, out=torch.empty_like(rows)))
            ended += int((outcome.truncated | outcome.terminated).sum())
    assert ended


@pytest.mark.parametrize("mandate", [None, MandateConfig(max_turnover=2.0)])
def test_reused_buffers_give_equal_results_and_preserve_the_previous_one(mandate: MandateConfig | None) -> None:
    market = random_market(assets=9, bars=BARS, volatility=0.03)
    config = EnvironmentConfig(envs=12, group=4, window=6)
    fresh, reusing = (make_env(market, config, mandate=mandate) for _ in range(2))
    reusing.reuse_buffers(True)
    generator = torch.Generator().manual_seed(0)
    fresh.reset(0), reusing.reset(0)
    before: list[torch.Tensor] = []
    last_reused: list[torch.Tensor] = []
    ended = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(market_env, "RUIN", EARLY_RUIN)
        for _ in range(STEPS):
            action = torch.randn(1, 12, fresh.action_size, generator=generator)
            expected, reused = (
                [*tensors_of(only_ended(env.step(action))), *numbers_of(env.state)] for env in (fresh, reusing)
            )
            assert all(torch.equal(a, b) for a, b in zip(expected, reused, strict=True))
            assert all(torch.equal(a, b) for a, b in zip(before, last_reused, strict=True)), (
                "the previous result must not change"
            )
            before, last_reused = expected, reused
            ended += int(expected[3].sum() + expected[4].sum())
    assert ended


def numbers_of(state: EnvState | None) -> list[torch.Tensor]:
    assert state is not None
    return [x for x in state if x is not None]


def only_ended(outcome: EnvStep) -> EnvStep:
    """Zero the final accounts of running episodes, which are undefined with reused buffers."""
    over = (outcome.terminated | outcome.truncated).unsqueeze(-1)
    final = outcome.final_observation
    return outcome._replace(final_observation=final._replace(account=torch.where(over, final.account, 0.0)))


def tensors_of(outcome: EnvStep) -> Iterator[torch.Tensor]:
    for x in outcome:
        yield from x if isinstance(x, tuple) else (x,)
