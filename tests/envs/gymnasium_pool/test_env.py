"""Gymnasium environments as one batched environment: shapes, seeds, episode ends and checkpoints."""

from __future__ import annotations

import re

import gymnasium
import numpy as np
import pytest
import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv
from finrl_pod_envs.gymnasium_pool.lanes import episode_seed, make_gymnasium, to_action

from finrl_pod.errors import ConfigError, InputError, RunError
from finrl_pod.protocols import VecEnv
from finrl_pod.random import key
from finrl_pod.types import EnvStep
from tests.envs.gymnasium_pool.faulty_envs import NAME, Odd

ODD, PENDULUM, CARTPOLE = NAME.format("Odd"), "gym:Pendulum-v1", "gym:CartPole-v1"


def actions(env: GymnasiumVecEnv, steps: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (steps, env.members, env.envs, env.action_size)
    if env.actions:
        return torch.randint(env.actions, shape, generator=generator)
    return torch.rand(shape, generator=generator) * 2 - 1


def play(env: GymnasiumVecEnv, seed: int, steps: int) -> list[EnvStep]:
    env.reset(seed)
    return [env.step(action) for action in actions(env, steps)]


def same(one: list[EnvStep], other: list[EnvStep], *, reward: bool = True) -> bool:
    names = [name for name in EnvStep._fields if reward or name != "reward"]
    return all(torch.equal(getattr(a, n), getattr(b, n)) for a, b in zip(one, other, strict=True) for n in names)


@pytest.mark.parametrize("name", [PENDULUM, CARTPOLE, ODD])
def test_implements_vec_env_with_correct_shapes(name: str) -> None:
    env = GymnasiumVecEnv(name, envs=2, members=(0, 3))
    assert isinstance(env, VecEnv)
    assert env.reset(1).shape == (2, 2, env.observation_size)
    for outcome in play(env, 1, 8):
        for x in (outcome.observation, outcome.final_observation):
            assert x.shape == (2, 2, env.observation_size)
            assert x.dtype == torch.float32
        for x in (outcome.reward, outcome.terminated, outcome.truncated):
            assert x.shape == (2, 2)
        assert not (outcome.terminated & outcome.truncated).any()


def test_each_lane_matches_a_gymnasium_environment_with_the_same_seeds() -> None:
    env = GymnasiumVecEnv(PENDULUM, envs=2, members=(4,))
    obs = env.reset(9)
    plain = gymnasium.make("Pendulum-v1")
    generator = key(9, 4, "environment 1")
    row, _ = plain.reset(seed=episode_seed(generator, 0))
    assert np.array_equal(obs[0, 1], row)
    for t, action in enumerate(actions(env, 205)):
        outcome = env.step(action)
        row, reward, _, over, _ = plain.step(2 * action[0, 1].numpy())  # Pendulum's bounds are +-2
        assert outcome.reward[0, 1] == pytest.approx(reward, rel=1e-6)
        assert np.allclose(outcome.final_observation[0, 1], row, atol=1e-6)
        assert bool(outcome.truncated[0, 1]) == over == (t == 199)
        assert not outcome.terminated.any()
        if over:
            row, _ = plain.reset(seed=episode_seed(generator, 1))
        assert np.allclose(outcome.observation[0, 1], row, atol=1e-6)


def test_termination_and_truncation_are_distinguished() -> None:
    env = GymnasiumVecEnv(ODD, envs=8)
    terminations, truncations = 0, 0
    for outcome in play(env, 3, 12):
        over = outcome.terminated | outcome.truncated
        assert torch.equal(outcome.observation[~over], outcome.final_observation[~over])
        # The final observation belongs to the ended episode, the observation to the next one.
        assert (outcome.final_observation[outcome.terminated][:, 0].floor() == 6).all()
        assert (outcome.final_observation[outcome.truncated][:, 0].floor() == 4).all()
        assert (outcome.observation[over][:, 0] < 1).all()
        terminations += int(outcome.terminated.sum())
        truncations += int(outcome.truncated.sum())
    assert terminations > 0
    assert truncations > 0


def test_actions_are_rescaled_to_the_bounds_and_clipped() -> None:
    env = GymnasiumVecEnv(ODD)
    env.reset(0)
    outcome = env.step(torch.tensor([[[-1.0, 0.0]]]))
    assert outcome.final_observation[0, 0, 1:].tolist() == [-2.0, 5.0]
    outcome = env.step(torch.tensor([[[7.0, -7.0]]]))
    assert outcome.final_observation[0, 0, 1:].tolist() == [2.0, 0.0]


def test_equal_seeds_repeat_and_a_member_does_not_depend_on_the_others() -> None:
    both = GymnasiumVecEnv(CARTPOLE, envs=2, members=(0, 1))
    one, repeated, other = play(both, 5, 30), play(both, 5, 30), play(both, 6, 30)
    assert same(one, repeated)
    assert not same(one, other)
    single_env = GymnasiumVecEnv(CARTPOLE, envs=2, members=(1,))
    single_env.reset(5)
    for action, outcome in zip(actions(both, 30), one, strict=True):
        single = single_env.step(action[1:])
        assert torch.equal(single.observation[0], outcome.observation[1])


def test_finished_episodes_are_returned_once() -> None:
    env = GymnasiumVecEnv(CARTPOLE, envs=3, members=(0, 1))
    total = sum(float(outcome.reward.sum()) for outcome in play(env, 0, 60))
    running = float(env._total.sum())
    episodes = env.episodes()
    assert {episode.member for episode in episodes} == {0, 1}
    assert all(episode.total == episode.steps for episode in episodes)  # CartPole's reward is 1 per step
    assert sum(episode.total for episode in episodes) + running == total
    assert env.episodes() == []


@pytest.mark.parametrize("name", [CARTPOLE, ODD, "gym:FrozenLake-v1"])
def test_resumes_exactly_from_a_checkpoint(name: str) -> None:
    env = GymnasiumVecEnv(name, envs=3)
    play(env, 2, 17)
    saved = env.checkpoint()
    later_actions = actions(env, 25, seed=1)
    expected = [env.step(action) for action in later_actions]
    other = GymnasiumVecEnv(name, envs=3)
    other.reset(0)
    obs = other.resume(saved)
    repeated = [other.step(action) for action in later_actions]
    assert same(expected, repeated)
    assert obs.shape == expected[0].observation.shape
    finished = other.episodes()
    assert finished
    assert finished == env.episodes()[-len(finished) :]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gym:Hoper-v5", "no Gymnasium environment 'Hoper-v5'.*Hopper"),
        ("Hopper-v5", "must start with gym:"),
        ("gym:nothing_here:X-v0", "no Gymnasium environment 'nothing_here:X-v0'"),
        (NAME.format("Many"), "10,000 combinations, and agents choose among at most 4,096"),
        (NAME.format("Whole"), r"are Box\(0, 5, \(2,\), int32\); agents need floating-point numbers"),
        (NAME.format("Idle"), "agents need floating-point numbers"),
        (NAME.format("Blind"), "without numbers"),
        (NAME.format("Unmakable"), "Unmakable-v0 cannot be made: OSError: no such simulator"),
        ("gym::CartPole-v1", "gym::CartPole-v1 cannot be made: ValueError"),
    ],
)
def test_unsupported_environments_are_rejected(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GymnasiumVecEnv(name)


def test_observation_of_words_is_named() -> None:
    env = GymnasiumVecEnv(NAME.format("Words"))
    with pytest.raises(ConfigError, match=r"Words-v0 returned \['one', 'two', 'three'\] as observation, its .* Box"):
        env.reset(0)


def test_wrong_observation_shape_raises_with_both_shapes() -> None:
    env = GymnasiumVecEnv(NAME.format("Short"))
    with pytest.raises(ConfigError, match=r"observation of shape \(2,\), its observation_space has \(3,\)"):
        env.reset(0)


def test_actions_have_the_space_dtype_and_bounds() -> None:
    env = GymnasiumVecEnv(NAME.format("Wide"))
    env.reset(0)
    for value in (1.0, -1.0, 0.3, 7.0):
        env.step(torch.full((1, 1, 2), value))


def test_invalid_rewards_and_exceptions_are_reported_with_their_location() -> None:
    idle = torch.zeros(1, 1, 2)
    for name, error, message in (
        ("NoReward", ConfigError, "returned a reward of None, a reward must be one number"),
        ("Broken", RunError, r"Broken-v0 failed: ValueError: it broke \(.*faulty_envs.py, line \d+\)"),
    ):
        env = GymnasiumVecEnv(NAME.format(name))
        env.reset(0)
        env.step(idle)
        env.step(idle)
        with pytest.raises(error, match=message):
            env.step(idle)


def test_wrong_action_shape_raises() -> None:
    env = GymnasiumVecEnv(PENDULUM, envs=2)
    with pytest.raises(InputError, match="reset"):
        env.step(torch.zeros(1, 2, 1))
    env.reset(0)
    with pytest.raises(InputError, match=r"shape \(1, 2, 1\), got \(1, 2, 2\)"):
        env.step(torch.zeros(1, 2, 2))
    with pytest.raises(ConfigError, match="--envs must be 1 or more, got 0"):
        GymnasiumVecEnv(PENDULUM, envs=0)


@pytest.mark.parametrize(("name", "choices"), [("Parts", 6), ("Bits", 8)])
def test_parts_of_an_action_are_one_choice_among_their_combinations(name: str, choices: int) -> None:
    env = GymnasiumVecEnv(NAME.format(name))
    assert (env.action_kind, env.actions, env.action_size) == ("discrete", choices, 1)
    decoded = [to_action(np.float32([i]), env.shapes) for i in range(choices)]
    space = make_gymnasium(NAME.format(name)).action_space
    assert all(space.contains(action) for action in decoded)
    assert len({tuple(action.tolist()) for action in decoded}) == choices


def test_numbers_that_are_not_finite_are_those_of_the_observation_before(caplog: pytest.LogCaptureFixture) -> None:
    env = GymnasiumVecEnv(NAME.format("Gap"), envs=2)
    first = env.reset(1)
    assert torch.isfinite(first).all()
    action = torch.full((1, 2, 2), 0.5)
    before, gap = env.step(action), env.step(action * -1)
    assert torch.equal(gap.final_observation[..., 1], before.final_observation[..., 1])
    assert torch.equal(gap.final_observation[..., 2], env.step(action * -1).final_observation[..., 2])
    env.close()
    assert re.search(r"[23] observations of .*Gap-v0 had numbers that were not finite", caplog.text)


@pytest.mark.parametrize("name", ["Four", "FourLimited"])
def test_step_of_four_values_is_named(name: str) -> None:
    env = GymnasiumVecEnv(NAME.format(name))
    env.reset(0)
    with pytest.raises(ConfigError, match="returns 4 values, as in old versions of Gym; return five"):
        env.step(torch.zeros(1, 1, 2))


def test_advice_for_unbounded_actions_works() -> None:
    with pytest.raises(ConfigError, match=r"TransformAction\(env, lambda x: x, Box\(-1, 1, \(2,\)\)\)"):
        GymnasiumVecEnv(NAME.format("Free"))
    space = gymnasium.spaces.Box(-1, 1, (2,))
    gymnasium.register("Bounded-v0", lambda: gymnasium.wrappers.TransformAction(Odd(), lambda x: x, space))
    assert play(GymnasiumVecEnv("gym:Bounded-v0"), 0, 8)


def test_long_episode_is_not_kept_and_starts_anew_after_an_interruption(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("finrl_pod_envs.gymnasium_pool.env.MAX_REPEATED_BYTES", 8 * 5)  # 5 steps of two numbers
    env = GymnasiumVecEnv(NAME.format("Endless"))
    play(env, 1, 5)
    short = env.checkpoint()
    env.step(torch.zeros(1, 1, 2))
    long = env.checkpoint()
    assert (short["taken"].shape[1], long["taken"].shape[1]) == (5, 0)
    assert env.resume(short)[0, 0, 1:].all()  # the last action
    assert not env.resume(long)[0, 0, 1:].any()
    assert "too long to be continued" in caplog.text
