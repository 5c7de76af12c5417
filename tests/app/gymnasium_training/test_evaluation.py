"""Several members that decide together: the mean of their actions, or the choice of most, whose rows they all see."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from finrl_pod_app.gymnasium_training.config import TrainingConfig
from finrl_pod_app.gymnasium_training.evaluation import evaluate, together

from finrl_pod.errors import Interrupted, RunError
from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.types import Tensor
from tests.envs.gymnasium_pool.faulty_envs import NAME


def test_joint_decision_is_the_mean_over_members() -> None:
    weights = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))  # of each member
    rows = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))

    def act(seen: Tensor) -> Tensor:
        return torch.bmm(seen, weights)

    wanted = torch.stack([(rows @ weights[p]).clamp(-1, 1) for p in range(3)]).mean(0)
    torch.testing.assert_close(together(act, 3)(rows), wanted)


def test_the_choice_of_most_and_of_equals_the_lowest() -> None:
    choices = torch.tensor([2, 0, 2])  # of each member, whatever it sees

    def act(seen: Tensor) -> Tensor:
        return choices.view(3, 1, 1).expand(*seen.shape[:2], 1)

    assert together(act, 3)(torch.zeros(3, 4, 1)).tolist() == [[[2]] * 4] * 3
    choices = torch.tensor([2, 0, 1])
    assert together(act, 3)(torch.zeros(3, 4, 1)).tolist() == [[[0]] * 4] * 3


def test_an_evaluation_tells_of_each_and_of_all() -> None:
    config = TrainingConfig("gym:CartPole-v1", PPOConfig(), steps=100, members=2)

    def act(seen: Tensor) -> Tensor:
        return torch.stack([torch.zeros_like(seen[0, :, :1]), torch.ones_like(seen[0, :, :1])]).long()

    found = evaluate(act, config, 4)
    assert found is not None
    assert len(found["mean"]) == 2
    assert found["together"]["episodes"] == 8
    assert 8 <= found["together"]["mean"] <= 11  # always pushed to one side, the pole falls at once
    single = TrainingConfig("gym:CartPole-v1", PPOConfig(), steps=100)
    alone = evaluate(lambda seen: torch.zeros_like(seen[..., :1]).long(), single, 2)
    assert alone is not None
    assert "together" not in alone


def still(seen: Tensor) -> Tensor:
    return torch.zeros(*seen.shape[:2], 2)


def test_returns_that_are_no_numbers_are_none() -> None:
    found = evaluate(still, TrainingConfig(NAME.format("NoNumber"), PPOConfig(), steps=100, members=2), 2)
    assert found is not None
    assert found["mean"] == found["std"] == [None, None]
    assert found["together"]["mean"] is None


def test_workers_evaluate_as_this_process_does() -> None:
    config = TrainingConfig("gym:Pendulum-v1", PPOConfig(), steps=100)
    here = evaluate(lambda seen: seen[..., :1], config, 3)
    assert evaluate(lambda seen: seen[..., :1], dataclasses.replace(config, workers=2), 3) == here


def test_stopped_and_failed_evaluations_are_reported() -> None:
    config = TrainingConfig(NAME.format("Broken"), PPOConfig(), steps=100)
    with pytest.raises(Interrupted):
        evaluate(still, config, 2, stopped=lambda: True)
    with pytest.raises(RunError, match=r"Broken-v0 failed: ValueError: it broke .*faulty_envs.py, line"):
        evaluate(still, config, 2)
    with pytest.raises(RunError, match=r"a worker of .*Broken-v0 was lost"):
        evaluate(still, dataclasses.replace(config, workers=1), 2)
