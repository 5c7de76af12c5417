"""The diagonal Gaussian against torch.distributions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributions import Independent, Normal

from finrl_pod.rl.networks.distributions import GAUSSIAN, valid_scores

P, K, A, D = 3, 4, 2, 5


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(params=[D, 1], ids=["one std per score", "shared std"])
def log_std(request: pytest.FixtureRequest) -> torch.Tensor:
    return draw(P, request.param, seed=1)


def reference(mean: torch.Tensor, log_std: torch.Tensor) -> Any:
    """torch's joint distribution of the D scores."""
    std = log_std.exp().view(P, 1, 1, -1).expand_as(mean)
    return Independent(Normal(mean, std), 1)


def test_log_probability(log_std: torch.Tensor) -> None:
    mean, action = draw(P, K, A, D), draw(P, K, A, D, seed=2)
    torch.testing.assert_close(
        GAUSSIAN.log_probability(action, mean, log_std), reference(mean, log_std).log_prob(action)
    )


def test_gradients_of_log_probability(log_std: torch.Tensor) -> None:
    mean, action = draw(P, K, A, D).requires_grad_(), draw(P, K, A, D, seed=2)
    log_std.requires_grad_()
    ours = torch.autograd.grad(GAUSSIAN.log_probability(action, mean, log_std).sum(), [mean, log_std])
    theirs = torch.autograd.grad(reference(mean, log_std).log_prob(action).sum(), [mean, log_std])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_entropy(log_std: torch.Tensor) -> None:
    mean = draw(P, K, A, D)
    expected = reference(mean, log_std).entropy()[:, 0, 0]
    torch.testing.assert_close(GAUSSIAN.entropy(mean, log_std), expected)


def test_sample_is_mean_plus_scaled_noise(log_std: torch.Tensor) -> None:
    mean, noise = draw(P, K, A, D), draw(P, K, A, D, seed=3)
    samples = GAUSSIAN.sample(mean, log_std, noise)
    torch.testing.assert_close((samples - mean) / log_std.exp().view(P, 1, 1, -1).expand_as(mean), noise)


def test_single_score() -> None:
    mean, action, log_std = draw(P, K, A, 1), draw(P, K, A, 1, seed=2), draw(P, 1, seed=1)
    torch.testing.assert_close(
        GAUSSIAN.log_probability(action, mean, log_std), reference(mean, log_std).log_prob(action)
    )
    torch.testing.assert_close(GAUSSIAN.entropy(mean, log_std), reference(mean, log_std).entropy()[:, 0, 0])


def test_density_excludes_scores_of_untradable_assets(log_std: torch.Tensor) -> None:
    """Density, entropy and gradients are those of the distribution of the remaining scores."""
    tradable = draw(P, K, D, seed=5) > -0.3
    assert 0 < int(tradable.sum()) < tradable.numel()
    valid = valid_scores(tradable, D)
    assert valid is not None
    mean, action = draw(P, K, A, D).requires_grad_(), draw(P, K, A, D, seed=2)
    actual = GAUSSIAN.log_probability(action, mean, log_std, valid)
    std = log_std.exp().expand(P, D)
    entropies = []
    for p in range(P):
        for k in range(K):
            mask = tradable[p, k]
            reduced = Independent(Normal(mean[p, k][:, mask], std[p][mask]), 1)
            torch.testing.assert_close(actual[p, k], reduced.log_prob(action[p, k][:, mask]))
            entropies.append(Independent(Normal(mean[p, k, 0, mask], std[p][mask]), 1).entropy())
    torch.testing.assert_close(GAUSSIAN.entropy(mean, log_std, valid), torch.stack(entropies).view(P, K).mean(1))
    (gradient,) = torch.autograd.grad(actual.sum(), [mean])
    assert not gradient[~valid.expand_as(gradient)].any()


def test_an_all_true_mask_changes_nothing(log_std: torch.Tensor) -> None:
    mean, action, all_valid = draw(P, K, A, D), draw(P, K, A, D, seed=2), torch.ones(P, K, 1, D, dtype=torch.bool)
    torch.testing.assert_close(
        GAUSSIAN.log_probability(action, mean, log_std, all_valid), GAUSSIAN.log_probability(action, mean, log_std)
    )
    torch.testing.assert_close(GAUSSIAN.entropy(mean, log_std, all_valid), GAUSSIAN.entropy(mean, log_std))


def test_the_score_of_cash_is_always_valid() -> None:
    tradable = draw(P, K, D - 1) > 0
    valid = valid_scores(tradable, D)
    assert valid is not None
    assert valid[..., 0].all()
    assert torch.equal(valid[:, :, 0, 1:], tradable)
    assert valid_scores(None, D) is None
