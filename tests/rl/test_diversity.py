"""The diversity bonus: KL divergences against torch.distributions and effect on the members."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from finrl_pod.rl.algorithms.regularisers import bonus, categorical_kl, gaussian_kl, neighbours
from tests.rl.all_algorithms import small_learner, training_state


@pytest.mark.parametrize("width", [1, 4])
def test_gaussian_kl_matches_torch(width: int) -> None:
    generator = torch.Generator().manual_seed(1)
    mean, other = (torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    log_std, other_log_std = (torch.randn(2, width, generator=generator, dtype=torch.float64) * 0.3 for _ in range(2))
    wide = (2, 1, 1, width)
    pairs = [(mean, log_std), (other, other_log_std)]
    one, two = (Independent(Normal(m, s.exp().view(wide).expand_as(m)), 1) for m, s in pairs)
    torch.testing.assert_close(gaussian_kl(mean, log_std, other, other_log_std) * 4, kl_divergence(one, two))


def test_gaussian_kl_ignores_invalid_scores() -> None:
    generator = torch.Generator().manual_seed(1)
    mean, other = (torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    log_std = torch.randn(2, 1, generator=generator, dtype=torch.float64)
    valid = torch.ones(2, 3, 1, 4, dtype=torch.bool)
    valid[..., 2] = False
    valid_scores = [0, 1, 3]
    expected = gaussian_kl(mean[..., valid_scores], log_std, other[..., valid_scores], log_std)
    torch.testing.assert_close(gaussian_kl(mean, log_std, other, log_std, valid), expected)


def test_categorical_kl_matches_torch() -> None:
    generator = torch.Generator().manual_seed(1)
    one, other = (torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    no_log_std = torch.empty(2, 0)
    expected = kl_divergence(Categorical(logits=one), Categorical(logits=other))
    torch.testing.assert_close(categorical_kl(one, no_log_std, other, no_log_std), expected)


def test_neighbour_is_the_next_active_member() -> None:
    def indices(*alive: bool) -> list[int]:
        return neighbours(torch.tensor(alive)).tolist()

    assert indices(True, True, True) == [1, 2, 0]
    assert indices(True, False, True) == [2, 2, 0]
    assert indices(True, False, False) == [0, 0, 0]
    assert indices(False, False) == [0, 1]
    assert indices(True) == [0]


def test_bonus_is_zero_for_equal_and_one_for_distant_members() -> None:
    def mean(views: dict[str, torch.Tensor]) -> torch.Tensor:
        return views["at"].view(2, 1, 1, 1).expand(2, 3, 2, 4)

    for separation, expected in ((0.0, 0.0), (1.0, 1 - math.exp(-0.5)), (1e3, 1.0)):
        views = {"at": torch.tensor([[0.0], [separation]]), "log_std": torch.zeros(2, 1)}
        assert bonus(views, mean, torch.tensor([1, 0]), gaussian_kl).tolist() == pytest.approx([expected, expected])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_identical_members_stay_equal_and_divergence_does_not_spread(name: str) -> None:
    def distance(weight: float, diverge: bool = False) -> float:
        learner = small_learner(name, (0, 0), diversity=weight, learning_rate_schedule="constant", gamma=0.5)
        # Both members have the same id and therefore the same weights and noise.
        learner.learn(2 * learner.iteration_samples)
        if diverge:
            next(iter(learner.algorithm.weights().values()))[1] = torch.nan
        learner.learn(6 * learner.iteration_samples)
        assert learner.alive == [True, not diverge]
        assert all(torch.isfinite(x).all() for x in training_state(learner, 0).values())
        one, two = (learner.algorithm.member(p)[0] for p in (0, 1))
        return float(sum((one[key] - two[key]).square().sum() for key in one))

    assert distance(0.0) == 0.0
    assert distance(0.5) == 0.0, "the gradient of the bonus is zero for equal members"
    distance(0.5, diverge=True)


def test_bonus_increases_the_difference_between_members() -> None:
    def divergence(weight: float) -> float:
        learner = small_learner("ppo", (0, 1), diversity=weight, learning_rate_schedule="constant", gamma=0.5)
        learner.learn(30 * learner.iteration_samples)
        algorithm, (bar, account) = learner.algorithm, learner.collector.observation
        features, tradable = algorithm.inputs.rows(bar)  # type: ignore[attr-defined]
        accounts, views = account.view(2, 2, 3, -1), algorithm.weights()
        mean = lambda params: algorithm.policy.mean(params, features, accounts, tradable)  # type: ignore[attr-defined]  # noqa: E731
        return float(bonus(views, mean, torch.tensor([1, 0]), gaussian_kl).mean())

    assert 1 - divergence(1.0) < (1 - divergence(0.0)) / 2
