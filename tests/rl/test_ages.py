"""Schedules by the age of each agent: learning rates, exploration, and the warm-up of a new agent in a used slot."""

from __future__ import annotations

import pytest
import torch
from finrl_pod_app.environment_training.config import agent_config

from finrl_pod.rl.algorithms.off_policy import OffPolicy
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import REDQConfig
from tests.rl.all_algorithms import small_learner, training_state

STEP = 6  # samples of one iteration of an off-policy learner


def off_policy(learner: Learner) -> OffPolicy:
    assert isinstance(learner.algorithm, OffPolicy)
    return learner.algorithm


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "a2c", "sac", "redq", "td3", "dqn", "analytic", "shac"])
def test_learning_rates_depend_on_the_age_of_each_member(name: str) -> None:
    """A schedule that is 0 from some age on stops only the older member."""
    learner = small_learner(name, (0, 1))
    learner.samples = [0, 1000]
    before = [training_state(learner, p) for p in (0, 1)]
    learner.learn(4 * learner.iteration_samples, schedule=lambda age: 1.0 if age < 1000 else 0.0)
    acting = learner.algorithm.member(0)[0]
    assert any(not torch.equal(before[0][key], training_state(learner, 0)[key]) for key in acting)
    for key in acting:
        assert torch.equal(before[1][key], training_state(learner, 1)[key]), key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "sac", "redq", "shac", "analytic", "dqn"])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_learning_rate_changed_in_a_callback_is_used(name: str, in_place: bool) -> None:
    learner = small_learner(name, (0,), learning_rate_schedule="constant", learning_starts=6) if name in (
        "sac", "redq", "dqn"
    ) else small_learner(name, (0,), learning_rate_schedule="constant")  # fmt: skip
    states = []

    def stop_learning(agent: Learner, _: object) -> None:
        if in_place:
            agent.algorithm.settings["learning_rate"].zero_()
        else:
            agent.algorithm.settings["learning_rate"] = torch.zeros(1, dtype=torch.float64)
        states.append(training_state(agent))

    learner.learn(3 * learner.iteration_samples, callback=stop_learning)
    for key in learner.algorithm.member(0)[0]:
        assert torch.equal(states[0][key], states[-1][key]), key


def test_a_new_agent_in_a_used_slot_explores_and_warms_up_like_any_new_agent() -> None:
    learner = small_learner("dqn", (0, 1), exploration_samples=60, final_epsilon=0.05, learning_starts=12)
    for p, age in enumerate((600, 0)):  # a copy of an old agent, and a new one, in slots that have been used
        learner.algorithm.set_age(p, age)
    algorithm = off_policy(learner)
    algorithm.load_slot_state({"counts": torch.tensor([0, 600, 600, 600, 600]), **algorithm.replay.latest(0)})
    algorithm.restart_slot(1)
    assert algorithm.epsilon.tolist() == pytest.approx([0.05, 1.0])
    before = [training_state(learner, p) for p in (0, 1)]
    learner.learn(STEP)
    assert algorithm.warming_up == [1]
    after = [training_state(learner, p) for p in (0, 1)]
    assert any(not torch.equal(x, after[0][key]) for key, x in before[0].items())
    assert all(torch.equal(x, after[1][key]) for key, x in before[1].items()), "no gradient step during its warm-up"
    learner.learn(STEP)
    assert algorithm.warming_up == []
    assert algorithm.epsilon.tolist() == pytest.approx([0.05, 1 - 0.95 * 12 / 60])
    assert any(not torch.equal(x, training_state(learner, 1)[key]) for key, x in before[1].items())


def test_the_warm_up_of_one_member_does_not_affect_another() -> None:
    """Restarting slot 1 changes neither the random numbers nor the updates of member 0."""
    same_age, restarted = (small_learner("sac", (0, 1), learning_starts=12) for _ in range(2))
    for learner in (same_age, restarted):
        learner.learn(3 * STEP)
    off_policy(restarted).restart_slot(1)
    for learner in (same_age, restarted):
        learner.learn(STEP)
    expected, actual = training_state(same_age, 0), training_state(restarted, 0)
    assert all(torch.equal(x, actual[key]) for key, x in expected.items())
    assert torch.equal(same_age.collector.observation.account[0], restarted.collector.observation.account[0])
    assert not torch.equal(same_age.collector.observation.account[1], restarted.collector.observation.account[1])


def test_slot_ages_are_part_of_the_slot_state() -> None:
    learner = small_learner("sac", (0, 1))
    learner.learn(3 * STEP)
    off_policy(learner).restart_slot(1)
    saved = learner.algorithm.slot_state()
    loaded = small_learner("sac", (0, 1))
    loaded.algorithm.load_slot_state(saved)
    assert off_policy(loaded).slot_ages == [3 * STEP, 0]


@pytest.mark.parametrize(("envs", "horizon"), [(1, 1), (4, 1), (2, 3)])
def test_redq_takes_twenty_gradient_steps_per_sample_of_gymnasium_environments(envs: int, horizon: int) -> None:
    """The update-to-data ratio of Chen et al. 2021, with one actor update per sample."""
    settings = [] if horizon == 1 else [f"horizon={horizon}"]
    config = agent_config("redq", settings, steps=10_000, envs=envs)
    assert isinstance(config, REDQConfig)
    assert config.gradient_steps == 20 * envs * horizon
    assert config.policy_delay == 20
    assert config.batch_size == 256
    sac = agent_config("sac", settings, steps=10_000, envs=envs)
    assert getattr(sac, "gradient_steps") == envs * horizon  # noqa: B009


def test_redq_draws_each_sample_of_a_market_twenty_times() -> None:
    config, envs = REDQConfig(), 256
    assert config.gradient_steps * config.batch_size / (config.horizon * envs) == 20
    learner = small_learner("redq", gradient_steps=20, policy_delay=20)
    learner.learn(4 * STEP)
    assert off_policy(learner).updates == 20 * 3  # the first iteration warms up
