"""Evaluation of single members and of their joint decisions: mean action or majority vote."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from finrl_pod_app.environment_training.config import TrainingConfig
from finrl_pod_app.environment_training.evaluation import ensemble_decision, evaluate

from finrl_pod.errors import Interrupted, RunError
from finrl_pod.rl import experience as episodes
from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.types import Tensor
from tests.envs.gymnasium_pool.faulty_envs import NAME


def test_joint_decision_is_the_mean_over_members() -> None:
    weights = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))  # of each member
    rows = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))

    def act(obs: Tensor) -> Tensor:
        return torch.bmm(obs, weights)

    expected = torch.stack([(rows @ weights[p]).clamp(-1, 1) for p in range(3)]).mean(0)
    torch.testing.assert_close(ensemble_decision(act, 3)(rows), expected)


def test_joint_decision_is_the_majority_and_the_lowest_action_on_ties() -> None:
    choices = torch.tensor([2, 0, 2])  # one per member, for every observation

    def act(obs: Tensor) -> Tensor:
        return choices.view(3, 1, 1).expand(*obs.shape[:2], 1)

    assert ensemble_decision(act, 3)(torch.zeros(3, 4, 1)).tolist() == [[[2]] * 4] * 3
    choices = torch.tensor([2, 0, 1])
    assert ensemble_decision(act, 3)(torch.zeros(3, 4, 1)).tolist() == [[[0]] * 4] * 3


def test_evaluation_reports_each_member_and_the_joint_decision() -> None:
    config = TrainingConfig("gym:CartPole-v1", PPOConfig(), steps=100, members=2)

    def act(obs: Tensor) -> Tensor:
        return torch.stack([torch.zeros_like(obs[0, :, :1]), torch.ones_like(obs[0, :, :1])]).long()

    result = evaluate(act, config, 4)
    assert result is not None
    assert len(result.mean) == 2
    assert result.ensemble is not None
    assert result.ensemble.episodes == 8
    assert 8 <= (result.ensemble.mean or 0) <= 11  # pushed to one side only, the pole falls within a few steps
    single = TrainingConfig("gym:CartPole-v1", PPOConfig(), steps=100)
    result = evaluate(lambda obs: torch.zeros_like(obs[..., :1]).long(), single, 2)
    assert result is not None
    assert result.to_dict()["ensemble"] is None


def zero_action(obs: Tensor) -> Tensor:
    return torch.zeros(*obs.shape[:2], 2)


def test_episodes_without_an_end_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "MAX_STEPS", 50)
    config = TrainingConfig(NAME.format("Endless"), PPOConfig(), steps=100, members=2)
    result = evaluate(zero_action, config, 3)
    assert result is not None
    assert result.mean == [50.0, 50.0]
    assert result.cut == [3, 3]
    assert result.to_dict()["ensemble"] == {"episodes": 6, "cut": 6, "mean": 50.0, "std": 0.0}
    ended = evaluate(zero_action, TrainingConfig(NAME.format("Odd"), PPOConfig(), steps=100), 3)
    assert ended is not None
    assert ended.cut == [0]


def test_non_finite_returns_are_none() -> None:
    result = evaluate(zero_action, TrainingConfig(NAME.format("NoNumber"), PPOConfig(), steps=100, members=2), 2)
    assert result is not None
    assert result.mean == result.std == [None, None]
    assert result.ensemble is not None
    assert result.ensemble.mean is None


@pytest.mark.slow
def test_worker_processes_give_the_same_evaluation() -> None:
    config = TrainingConfig("gym:Pendulum-v1", PPOConfig(), steps=100)
    in_process = evaluate(lambda obs: obs[..., :1], config, 3)
    assert evaluate(lambda obs: obs[..., :1], dataclasses.replace(config, workers=2), 3) == in_process


@pytest.mark.slow
def test_stopped_and_failed_evaluations_are_reported() -> None:
    config = TrainingConfig(NAME.format("Broken"), PPOConfig(), steps=100)
    with pytest.raises(Interrupted):
        evaluate(zero_action, config, 2, is_stopped=lambda: True)
    with pytest.raises(RunError, match=r"Broken-v0 failed: ValueError: it broke .*faulty_envs.py, line"):
        evaluate(zero_action, config, 2)
    with pytest.raises(RunError, match="a worker was lost"):
        evaluate(zero_action, dataclasses.replace(config, workers=1), 2)
