"""Contract of every VecEnv, for all kinds and settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.observation import flat, flat_size
from finrl_pod_envs.trading_envs import KINDS, make_env

from finrl_pod.errors import ConfigError
from finrl_pod.protocols import VecEnv
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import EnvStep
from tests.markets import random_market

P, E, GROUP, N, F = 2, 6, 3, 3, 2
MARKETS = {
    fill: random_market(4, fill=fill, gaps=0.1, ends={0: 20}, starts={1: 5}, turbulence=torch.arange(40.0).numpy())
    for fill in ("next", "same_close")
}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "same close": {"fill": "same_close"},
    "whole": {"whole_shares": True},
    "FinRL": {"whole_shares": True, "buy_allocation": "sequential", "fill": "same_close", "reward": "change"},
    "short and leverage": {"short": True, "leverage": 2.0},
    "Sharpe, turbulence": {"reward": "differential_sharpe", "turbulence_limit": 30.0},
}


# The discrete environment does not support short selling and leverage.
CASES = [(kind, name) for kind in KINDS for name in SETTINGS if (kind, name) != ("discrete", "short and leverage")]


def actions(env: MarketEnv, generator: torch.Generator | None = None) -> torch.Tensor:
    if env.action_kind == "discrete":
        return torch.randint(env.actions, (P, E, 1), generator=generator)  # type: ignore[attr-defined]
    return torch.randn(P, E, env.action_size, generator=generator)


@pytest.fixture(params=CASES, ids=lambda p: f"{p[0]}, {p[1]}")
def env(request: pytest.FixtureRequest) -> MarketEnv:
    kind, name = request.param
    config = EnvironmentConfig(kind=kind, window=8, envs=E, group=GROUP, **SETTINGS[name])
    return make_env(MARKETS[config.fill], config, members=(0, 5))


def run_steps(env: MarketEnv, seed: int, steps: int = 20) -> list[EnvStep]:
    env.reset(seed)
    noise = torch.Generator().manual_seed(1)
    return [env.step(actions(env, noise)) for _ in range(steps)]


def test_env_implements_vec_env_with_correct_sizes(env: MarketEnv) -> None:
    assert isinstance(env, VecEnv)
    assert (env.members, env.envs) == (P, E)
    assert env.action_size in (N, N + 1) or (env.action_kind, env.action_size) == ("discrete", 1)


def test_shapes_dtypes_and_finite_numbers(env: MarketEnv) -> None:
    first = env.reset(0)
    outcomes = run_steps(env, 0)
    for observation in [first] + [o for s in outcomes for o in (s.observation, s.final_observation)]:
        assert observation.bar.shape == (P, E // GROUP)
        assert observation.bar.dtype == torch.int64
        assert observation.account.shape == (P, E, 1 + N + env.extras.size(N))
        assert observation.account.dtype == torch.float32
        assert torch.isfinite(observation.account).all()
        row = flat(env.market, observation)
        extras = env.extras.size(N)
        assert row.shape == (P, E, flat_size(env.market, extras)) == (P, E, 1 + N + extras + N * F)
        assert row.dtype == torch.float32
    for outcome in outcomes:
        for name in ("reward", "equity", "turnover", "cost"):
            values = getattr(outcome, name)
            assert values.shape == (P, E), name
            assert values.dtype == torch.float32, name
            assert torch.isfinite(values).all(), name
        assert (outcome.turnover >= 0).all()
        assert (outcome.cost >= 0).all()
        for flag in (outcome.terminated, outcome.truncated):
            assert flag.shape == (P, E)
            assert flag.dtype == torch.bool
        assert not (outcome.terminated & outcome.truncated).any()


@pytest.mark.slow
def test_rollouts_depend_on_the_seed(env: MarketEnv) -> None:
    runs = [run_steps(env, seed) for seed in (1, 1, 2)]
    for a, b in zip(runs[0], runs[1], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(flatten(a), flatten(b), strict=True))
    assert any(not torch.equal(a.reward, c.reward) for a, c in zip(runs[0], runs[2], strict=True))


def test_step_does_not_modify_its_inputs(env: MarketEnv) -> None:
    first = env.reset(0)
    action = actions(env)
    copies = first.bar.clone(), first.account.clone(), action.clone()
    outcome = env.step(action)
    later = outcome.observation.account.clone()
    env.step(action)
    assert all(torch.equal(a, b) for a, b in zip(copies, (first.bar, first.account, action), strict=True))
    assert torch.equal(outcome.observation.account, later)


def test_environments_reset_in_the_step_that_ends_the_window(env: MarketEnv) -> None:
    ends = 0
    for outcome in run_steps(env, 0, 30):
        done = outcome.terminated | outcome.truncated
        ends += int(done.sum())
        current, final = outcome.observation.account, outcome.final_observation.account
        assert torch.equal(current[~done], final[~done])
        assert torch.equal(current[done][:, 0], torch.ones(int(done.sum())))
        assert not current[done][:, 1:].any()
    assert ends >= 3 * P * E


def test_flat_observation_is_account_and_shared_features() -> None:
    env = make_env(MARKETS["next"], EnvironmentConfig(window=8, envs=E, group=GROUP), members=(0, 5))
    observation = run_steps(env, 0, 5)[-1].observation
    row = flat(env.market, observation)
    for p in range(P):
        for e in range(E):
            table = env.market.features[observation.bar[p, e // GROUP]]
            assert torch.equal(row[p, e], torch.cat([observation.account[p, e], table.flatten()]))


def test_unknown_kind_is_refused() -> None:
    config = dataclasses.replace(EnvironmentConfig(), kind="unknown")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="one of portfolio, stock_trading, discrete, got 'unknown'"):
        make_env(MARKETS["next"], config)


def flatten(outcome: EnvStep) -> list[torch.Tensor]:
    return [t for part in outcome for t in (part if isinstance(part, tuple) else (part,))]


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("configured", sorted(KINDS))
def test_class_overrides_the_kind_of_its_config(kind: str, configured: str) -> None:
    """The default kind of a config is "portfolio"; kernels that used it would read past the actions."""

    def rewards(kind_setting: str) -> torch.Tensor:
        config = EnvironmentConfig(kind=kind_setting, window=8, envs=E, group=GROUP)  # type: ignore[arg-type]
        env = KINDS[kind](MARKETS["next"], config, members=(0, 5))
        assert env.config.kind == kind
        return torch.stack([step.reward for step in run_steps(env, 3)])

    assert torch.equal(rewards(configured), rewards(kind))
