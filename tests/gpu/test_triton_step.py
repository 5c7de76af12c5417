"""The Triton kernel of a step against `MarketEnv.transition`, on a CUDA device or in Triton's interpreter.

TRITON_INTERPRET=1 python -m pytest -k triton tests/gpu
"""

from __future__ import annotations

import pytest
import torch
from finrl_pod_envs import market_env
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import make_env
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.data.tensor import to_device
from finrl_pod.native.device import as_on_device
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import MarketTensor
from tests.envs.kernel_settings import KERNEL_SETTINGS
from tests.gpu.conftest import DEVICE, needs_triton
from tests.mandates import fitting, mandates, with_random_base
from tests.markets import turbulent_market

pytestmark = needs_triton

STEPS, BARS = 9, 30
EARLY_RUIN = 0.97  # ruins accounts early, so that resets are covered
configs = st.builds(
    EnvironmentConfig,
    kind=st.sampled_from(["portfolio", "stock_trading"]),
    whole_shares=st.booleans(),
    hmax=st.sampled_from([100.0, 5000.0]),
    **{**KERNEL_SETTINGS, "envs": st.just(6), "group": st.sampled_from([1, 2, 3])},
)


def make(
    seed: int, config: EnvironmentConfig, assets: int, gaps: bool, mandate: MandateConfig, dtype: torch.dtype
) -> MarketEnv:
    """An environment with a Triton step, of two members."""
    market: MarketTensor = turbulent_market(seed, BARS, assets, config.fill, gaps, spreads=True)
    if config.kind == "stock_trading":
        mandate = MandateConfig(base="none")
    if mandate.base == "random":
        market = with_random_base(market, seed)
    with as_on_device():
        env = make_env(to_device(market, DEVICE), config, members=(0, 5), dtype=dtype, mandate=fitting(mandate, assets))
    env.reset(seed)
    return env


def draw_action(
    env: MarketEnv, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    shape = (env.members, env.envs, env.action_size)
    return torch.randn(shape, generator=generator, dtype=dtype).to(DEVICE)


def assert_same_step(env: MarketEnv, action: torch.Tensor, tolerance: float, reuse: bool = False) -> None:
    """The kernel's next state and results are those of `transition`, which the environment continues from."""
    before = env.state
    assert before is not None
    assert env._native is not None
    state, plain = env.transition(before, action)
    kept, step = env._native(before, action, env._starts, market_env.RUIN, reuse=reuse)
    cash = env.config.cash
    torch.testing.assert_close(kept.cash, state.cash, rtol=0, atol=tolerance * cash)
    torch.testing.assert_close(kept.shares, state.shares, rtol=10 * tolerance, atol=100 * tolerance)
    for ours, theirs in ((kept.virtual, state.virtual), (kept.budget, state.budget)):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=10 * tolerance)
    for name in ("bar", "steps_left", "episode_index"):
        assert torch.equal(getattr(kept, name), getattr(state, name))
    for name in ("terminated", "truncated"):
        assert torch.equal(getattr(step, name), getattr(plain, name))
    for name in ("reward", "turnover"):
        torch.testing.assert_close(getattr(step, name), getattr(plain, name), rtol=0, atol=100 * tolerance)
    for name in ("equity", "cost"):
        torch.testing.assert_close(getattr(step, name), getattr(plain, name), rtol=0, atol=tolerance * cash)
    for ours_seen, plain_seen in (
        (step.observation, plain.observation),
        (step.final_observation, plain.final_observation),
    ):
        assert torch.equal(ours_seen.bar, plain_seen.bar)
        torch.testing.assert_close(ours_seen.account, plain_seen.account, rtol=0, atol=10 * tolerance)
    env.set_state(kept if reuse else state)


@settings(max_examples=10, deadline=None)  # each takes seconds in the interpreter
@given(
    seed=st.integers(0, 2**31 - 1),
    config=configs,
    assets=st.sampled_from([1, 3, 8, 11]),
    gaps=st.booleans(),
    mandate=mandates,
)
def test_triton_step_matches_transition(
    seed: int, config: EnvironmentConfig, assets: int, gaps: bool, mandate: MandateConfig
) -> None:
    env = make(seed, config, assets, gaps, mandate, torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(market_env, "RUIN", EARLY_RUIN)
        for _ in range(STEPS):
            assert_same_step(env, 2 * draw_action(env, generator), 1e-9)


@pytest.mark.parametrize("kind", ["portfolio", "stock_trading", "mandate"])
@pytest.mark.parametrize("actions", [torch.float32, torch.bfloat16])
def test_triton_step_in_float32(kind: str, actions: torch.dtype) -> None:
    """Also with actions in bfloat16, which are read as they are and computed with in float32."""
    mandate = MandateConfig(base="equal_weight" if kind == "mandate" else "none")
    config = EnvironmentConfig(kind="portfolio" if kind == "mandate" else kind, envs=6, group=3, window=6)  # type: ignore[arg-type]
    env = make(3, config, 5, True, mandate, torch.float32)
    generator = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        assert_same_step(env, draw_action(env, generator, torch.float32).to(actions), 2e-5)


def test_triton_step_in_place() -> None:
    """Steps over the state of the last one write to the same tensors, through the end of a window."""
    config = EnvironmentConfig(kind="portfolio", envs=6, group=2, window=4)
    env = make(1, config, 4, False, MandateConfig(max_turnover=2.0), torch.float64)
    addresses = set()
    for h in range(6):
        generator = torch.Generator().manual_seed(h)
        assert_same_step(env, draw_action(env, generator), 1e-9, True)
        assert env.state is not None
        addresses.add(tuple(x.data_ptr() for x in env.state if x is not None))
    assert len(addresses) == 1


def test_triton_step_with_more_accounts_than_a_block() -> None:
    config = EnvironmentConfig(kind="portfolio", envs=70, group=70, window=4)
    env = make(2, config, 40, False, MandateConfig(), torch.float64)
    assert_same_step(env, draw_action(env), 1e-9)


def test_triton_step_keeps_holdings_at_a_nan_score() -> None:
    env = make(4, EnvironmentConfig(envs=6, group=3, window=6), 5, False, MandateConfig(), torch.float64)
    env.reset(4, stagger=False)
    env.step(torch.zeros_like(draw_action(env)))
    before = env.state
    assert before is not None
    action = torch.zeros_like(draw_action(env))
    action[0, 1, 3] = torch.nan
    after = env._native(before, action, env._starts, market_env.RUIN)[0] if env._native else before
    kept = (after.shares == before.shares).all(-1).flatten()
    assert bool(kept[1])
    assert not bool(kept[0])


def test_triton_step_is_left_to_torch_where_rules_are_missing() -> None:
    for config in (EnvironmentConfig(buy_allocation="sequential"), EnvironmentConfig(short=True)):
        assert make(0, config, 3, False, MandateConfig(base="none"), torch.float64)._native is None
