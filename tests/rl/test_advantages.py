"""Generalised advantage estimation against a plain recursion and its two closed forms."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.rl.buffers.rollout import gae
from tests.rl.plain_gae import Trajectory, plain_gae

H, P, E = 9, 2, 4
DISCOUNT = torch.tensor([0.9, 0.6], dtype=torch.float64)


def random_trajectory(seed: int, ends: float = 0.25) -> Trajectory:
    """Within an episode the next value is the value of the next step; at its end it is another state's."""
    stream = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=stream, dtype=torch.float64)

    values, last, final = draw(H, P, E), draw(1, P, E), draw(H, P, E)
    chance = torch.rand(H, P, E, generator=stream)
    terminated = chance < ends / 2
    truncated = (chance >= ends / 2) & (chance < ends)
    next_values = torch.where(terminated | truncated, final, torch.cat([values[1:], last]))
    return Trajectory(draw(H, P, E), values, next_values, terminated, truncated)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), decay=st.floats(0, 1), ends=st.sampled_from([0.0, 0.25, 1.0]))
def test_it_is_the_sum_of_discounted_errors_up_to_the_episodes_end(seed: int, decay: float, ends: float) -> None:
    trajectory = random_trajectory(seed, ends)
    lambdas = torch.tensor([decay, 0.5], dtype=torch.float64)
    advantages = gae(*trajectory, DISCOUNT, lambdas)
    for p in range(P):
        for e in range(E):
            expected = plain_gae(trajectory, p, e, float(DISCOUNT[p]), float(lambdas[p]))
            assert advantages[:, p, e].tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_lambda_zero_is_the_one_step_error() -> None:
    trajectory = random_trajectory(1)
    ahead = torch.where(trajectory.terminated, 0.0, trajectory.next_values) * DISCOUNT.view(1, P, 1)
    expected = trajectory.rewards + ahead - trajectory.values
    torch.testing.assert_close(gae(*trajectory, DISCOUNT, torch.zeros(P, dtype=torch.float64)), expected)


def test_lambda_one_is_the_return_less_the_value() -> None:
    """Discounted rewards to the episode's end, plus the value of what a cut-off episode was led to."""
    trajectory = random_trajectory(2)
    advantages = gae(*trajectory, DISCOUNT, torch.ones(P, dtype=torch.float64))
    cuts = 0
    for p in range(P):
        discount = float(DISCOUNT[p])
        for e in range(E):
            done = trajectory.terminated[:, p, e] | trajectory.truncated[:, p, e]
            for start in range(H):
                stops = [h for h in range(start, H) if done[h]]
                end = stops[0] if stops else H - 1
                total = sum(discount ** (h - start) * float(trajectory.rewards[h, p, e]) for h in range(start, end + 1))
                if not trajectory.terminated[end, p, e]:
                    total += discount ** (end + 1 - start) * float(trajectory.next_values[end, p, e])
                    cuts += bool(stops)
                assert float(advantages[start, p, e]) == pytest.approx(total - float(trajectory.values[start, p, e]))
    assert cuts > 5


def test_ruin_has_no_future_and_a_window_that_is_over_has_one() -> None:
    """The same numbers, once terminated and once truncated, differ by the discounted value of the final state."""
    trajectory = random_trajectory(3, ends=0.0)
    flag = torch.zeros(H, P, E, dtype=torch.bool)
    flag[4] = True
    none = torch.zeros_like(flag)
    lambdas = torch.tensor([0.8, 0.3], dtype=torch.float64)
    ruined = gae(*trajectory._replace(terminated=flag, truncated=none), DISCOUNT, lambdas)
    cut = gae(*trajectory._replace(terminated=none, truncated=flag), DISCOUNT, lambdas)
    torch.testing.assert_close(cut[4] - ruined[4], DISCOUNT.view(P, 1) * trajectory.next_values[4])
    torch.testing.assert_close(cut[5:], ruined[5:], rtol=0, atol=0)
    later = trajectory._replace(terminated=none, truncated=flag)
    later.rewards[5:] += 100
    torch.testing.assert_close(gae(*later, DISCOUNT, lambdas)[:5], cut[:5], rtol=0, atol=0)


def test_each_member_has_its_own_settings() -> None:
    trajectory = random_trajectory(4)
    lambdas = torch.tensor([0.95, 0.1], dtype=torch.float64)
    together = gae(*trajectory, DISCOUNT, lambdas)
    for p in range(P):
        own = Trajectory(*(x[:, p : p + 1] for x in trajectory))
        single = gae(*own, DISCOUNT[p : p + 1], lambdas[p : p + 1])
        assert torch.equal(together[:, p : p + 1], single)
