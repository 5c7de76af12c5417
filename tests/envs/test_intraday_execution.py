"""The intraday execution environment: rewards against the accounting, episodes, and a trained agent as a schedule."""

from __future__ import annotations

import pytest
import torch
from finrl_pod_envs.intraday_execution import AgentSchedule, IntradayExecutionEnv

from finrl_pod.errors import ConfigError, InputError
from finrl_pod.market.intraday import execute, simulated_sessions, twap, vwap
from finrl_pod.protocols import VecEnv
from finrl_pod.settings.multi_agent import IntradayExecutionConfig

SESSIONS = simulated_sessions(30, bars=8)
CONFIG = IntradayExecutionConfig(order_share=0.1)


def test_rewards_add_up_to_the_shortfall_saved_against_even_slices() -> None:
    env = IntradayExecutionEnv(SESSIONS, CONFIG, envs=50)
    env.reset(0)
    session = env._session[0].clone()
    total = torch.zeros(50)
    for _ in range(8):
        total += env.step(torch.zeros(1, 50, 1)).reward[0]
    # A purchase and a sale in the same session: the price path cancels.
    cost = {s: sum(execute(SESSIONS, s, CONFIG, side=side).shortfall for side in (1, -1)) / 2 for s in (twap, vwap)}
    saved = cost[twap] - cost[vwap]
    torch.testing.assert_close(total.double(), saved[session], rtol=1e-4, atol=1e-4)


def test_observations_of_the_environment_and_of_a_schedule_are_the_same() -> None:
    env = IntradayExecutionEnv(SESSIONS, CONFIG, envs=3)
    rows = [env.reset(2)]
    session = env._session[0].clone()
    for _ in range(7):
        rows.append(env.step(torch.full((1, 3, 1), 0.4)).observation)
    seen: list[torch.Tensor] = []

    def act(row: torch.Tensor) -> torch.Tensor:
        seen.append(row)
        return torch.full((1, row.shape[1], 1), 0.4)

    for e in range(3):
        seen.clear()
        execute(SESSIONS, AgentSchedule(env, act), CONFIG)
        for j in range(8):
            torch.testing.assert_close(seen[j][0, session[e]], rows[j][0, e])


def test_episodes_are_sessions_and_follow_the_seed() -> None:
    def run(seed: int) -> list[torch.Tensor]:
        env = IntradayExecutionEnv(SESSIONS, CONFIG, envs=4, members=(0, 3))
        assert isinstance(env, VecEnv)
        steps = [env.reset(seed)]
        for j in range(20):
            out = env.step(torch.full((2, 4, 1), float("nan") if j == 3 else 5.0))
            assert bool(out.terminated.all()) is (j % 8 == 7)
            assert not out.truncated.any()
            assert torch.isfinite(out.reward).all()
            steps += [out.observation, out.final_observation, out.reward]
        return steps

    first, second, other = run(1), run(1), run(2)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_risk_aversion_rewards_trading_early() -> None:
    totals = []
    for risk in (0.0, 50.0):
        env = IntradayExecutionEnv(SESSIONS, IntradayExecutionConfig(risk_aversion=risk), envs=200)
        env.reset(0)
        totals.append([sum(env.step(torch.full((1, 200, 1), a)).reward.mean() for _ in range(8)) for a in (0.0, 1.0)])
    assert totals[1][1] - totals[1][0] > totals[0][1] - totals[0][0]


def test_bad_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one session"):
        IntradayExecutionEnv(SESSIONS.part(0, 0))
    with pytest.raises(ConfigError, match="order_share"):
        IntradayExecutionEnv(SESSIONS, IntradayExecutionConfig(order_share=0.0))
    env = IntradayExecutionEnv(SESSIONS, envs=2)
    env.reset(0)
    with pytest.raises(InputError, match="shape"):
        env.step(torch.zeros(2, 1))
