"""Generalised advantage estimation against a plain sum and the closed forms for lambda 0 and 1."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.rl.experience import gae
from tests.rl.reference_gae import Trajectory, reference_gae

H, P, E = 9, 2, 4
DISCOUNT = torch.tensor([0.9, 0.6], dtype=torch.float64)


def random_trajectory(seed: int, ends: float = 0.25) -> Trajectory:
    """Next values equal the following step's value within an episode and are independent at its end."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    values, last, final = draw(H, P, E), draw(1, P, E), draw(H, P, E)
    uniform = torch.rand(H, P, E, generator=generator)
    terminated = uniform < ends / 2
    truncated = (uniform >= ends / 2) & (uniform < ends)
    next_values = torch.where(terminated | truncated, final, torch.cat([values[1:], last]))
    return Trajectory(draw(H, P, E), values, next_values, terminated, truncated)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), decay=st.floats(0, 1), ends=st.sampled_from([0.0, 0.25, 1.0]))
def test_gae_is_the_discounted_sum_of_td_errors_until_the_episode_ends(seed: int, decay: float, ends: float) -> None:
    trajectory = random_trajectory(seed, ends)
    lambdas = torch.tensor([decay, 0.5], dtype=torch.float64)
    advantages = gae(*trajectory, DISCOUNT, lambdas)
    for p in range(P):
        for e in range(E):
            expected = reference_gae(trajectory, p, e, float(DISCOUNT[p]), float(lambdas[p]))
            assert advantages[:, p, e].tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_lambda_zero_gives_the_one_step_td_error() -> None:
    trajectory = random_trajectory(1)
    bootstrap = torch.where(trajectory.terminated, 0.0, trajectory.next_values) * DISCOUNT.view(1, P, 1)
    expected = trajectory.rewards + bootstrap - trajectory.values
    torch.testing.assert_close(gae(*trajectory, DISCOUNT, torch.zeros(P, dtype=torch.float64)), expected)


def test_lambda_one_gives_the_return_minus_the_value() -> None:
    """The return is the sum of discounted rewards, plus the value of the final state if truncated."""
    trajectory = random_trajectory(2)
    advantages = gae(*trajectory, DISCOUNT, torch.ones(P, dtype=torch.float64))
    truncations = 0
    for p in range(P):
        discount = float(DISCOUNT[p])
        for e in range(E):
            ended = trajectory.terminated[:, p, e] | trajectory.truncated[:, p, e]
            for start in range(H):
                end_steps = [h for h in range(start, H) if ended[h]]
                end = end_steps[0] if end_steps else H - 1
                total = sum(discount ** (h - start) * float(trajectory.rewards[h, p, e]) for h in range(start, end + 1))
                if not trajectory.terminated[end, p, e]:
                    total += discount ** (end + 1 - start) * float(trajectory.next_values[end, p, e])
                    truncations += bool(end_steps)
                assert float(advantages[start, p, e]) == pytest.approx(total - float(trajectory.values[start, p, e]))
    assert truncations > 5


def test_truncation_bootstraps_and_termination_does_not() -> None:
    """The advantages of the two differ by the discounted value of the final state."""
    trajectory = random_trajectory(3, ends=0.0)
    flag = torch.zeros(H, P, E, dtype=torch.bool)
    flag[4] = True
    no_ends = torch.zeros_like(flag)
    lambdas = torch.tensor([0.8, 0.3], dtype=torch.float64)
    ruined = gae(*trajectory._replace(terminated=flag, truncated=no_ends), DISCOUNT, lambdas)
    cut = gae(*trajectory._replace(terminated=no_ends, truncated=flag), DISCOUNT, lambdas)
    torch.testing.assert_close(cut[4] - ruined[4], DISCOUNT.view(P, 1) * trajectory.next_values[4])
    torch.testing.assert_close(cut[5:], ruined[5:], rtol=0, atol=0)
    later = trajectory._replace(terminated=no_ends, truncated=flag)
    later.rewards[5:] += 100
    torch.testing.assert_close(gae(*later, DISCOUNT, lambdas)[:5], cut[:5], rtol=0, atol=0)


def test_each_member_has_its_own_gamma_and_lambda() -> None:
    trajectory = random_trajectory(4)
    lambdas = torch.tensor([0.95, 0.1], dtype=torch.float64)
    batched = gae(*trajectory, DISCOUNT, lambdas)
    for p in range(P):
        member_trajectory = Trajectory(*(x[:, p : p + 1] for x in trajectory))
        single = gae(*member_trajectory, DISCOUNT[p : p + 1], lambdas[p : p + 1])
        assert torch.equal(batched[:, p : p + 1], single)
