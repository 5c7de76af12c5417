"""Copies and pickles of learners, which continue the training as the learner itself would."""

from __future__ import annotations

import copy
import pickle

import cloudpickle
import pytest
import torch

from finrl_pod.rl.training.learner import Learner
from finrl_pod.types import EnvStep
from tests.rl.all_algorithms import NAMES, small_config, small_learner, training_state


def pickled(learner: Learner) -> Learner:
    copied: Learner = pickle.loads(cloudpickle.dumps(learner))  # noqa: S301
    return copied


def same_state(one: Learner, other: Learner, p: int) -> bool:
    ours, theirs = training_state(one, p), training_state(other, p)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_copies_continue_as_the_learner_does(name: str, dtype: torch.dtype) -> None:
    """float32 runs in the kernels, where there are any, float64 through autograd."""
    rates = [{"learning_rate": 1e-3}, {"learning_rate": 1e-2}]
    learner = small_learner(name, (0, 1), hyperparameters=rates, dtype=dtype)
    learner.learn(100)
    learner.algorithm.settings["gamma"][1] = 0.9  # as a tournament changes settings
    copies = [copy.deepcopy(learner), pickled(learner)]
    before = [{key: x.clone() for key, x in training_state(learner, p).items()} for p in range(2)]
    for other in copies:
        assert other.samples == learner.samples
        assert other.algorithm.settings["gamma"].tolist() == learner.algorithm.settings["gamma"].tolist()
        other.learn(100)
    assert all(torch.equal(x, before[p][key]) for p in range(2) for key, x in training_state(learner, p).items())
    learner.learn(100)
    assert all(same_state(learner, other, p) for other in copies for p in range(2))
    assert not all(torch.equal(x, before[1][key]) for key, x in training_state(learner, 1).items())


class Line:
    """A minimal environment of one's own, without checkpoint() and resume()."""

    member_ids, members, envs, device = (0,), 1, 4, torch.device("cpu")
    observation_size, action_size, action_kind, actions = 1, 1, "direct", 0

    def reset(self, seed: int, *, stagger: bool = True) -> torch.Tensor:
        self.place = torch.randn(1, 4, 1, generator=torch.Generator().manual_seed(seed))
        self.left = 8
        return self.place

    def step(self, action: torch.Tensor, out: torch.Tensor | None = None) -> EnvStep:
        self.place, self.left = self.place + action, self.left - 1
        reward, ends = -self.place.squeeze(-1).abs(), torch.full((1, 4), self.left == 0)
        final = self.place
        if self.left == 0:
            self.place, self.left = torch.zeros(1, 4, 1), 8
        return EnvStep(self.place, reward, torch.zeros_like(ends), ends, final)


def test_copy_of_a_learner_whose_environment_has_no_checkpoint() -> None:
    learner = Learner(Line(), small_config("ppo", policy="mlp"))
    learner.learn(30)
    other = pickled(learner)
    for each in (learner, other):
        each.learn(50)
    assert same_state(learner, other, 0)


def test_copy_before_the_first_iteration() -> None:
    learner = small_learner("ppo")
    other = copy.deepcopy(learner)
    for each in (learner, other):
        each.learn(1)
    assert same_state(learner, other, 0)
