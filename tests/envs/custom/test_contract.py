"""The check of the contract: what it accepts, and the words in which it tells each fault."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from finrl_pod_envs.custom.contract import check_env
from finrl_pod_envs.custom.template import Drift
from torch import Tensor

from finrl_pod.types import EnvStep

Change = Callable[["Changed", EnvStep], Any]


class Changed(Drift):
    """A Drift whose steps are changed by `change`."""

    change: Change

    def __init__(self, *, change: Change, **terms: Any) -> None:
        super().__init__(**terms)
        self.change, self.kept = change, torch.zeros(0)

    def step(self, action: Tensor) -> EnvStep:
        outcome: EnvStep = self.change(self, super().step(action))
        return outcome


def faults(change: Change, **terms: Any) -> Mapping[str, str]:
    """Messages by rule."""
    found = check_env(lambda envs, members: Changed(change=change, envs=envs, members=members), **terms)
    return {fault.rule: fault.message for fault in found}


def with_nan(_: Changed, out: EnvStep) -> EnvStep:
    out.reward.view(-1)[2] = float("nan")
    return out


def reused(env: Changed, out: EnvStep) -> EnvStep:
    env.kept = out.observation.clone() if not env.kept.numel() else env.kept
    env.kept.copy_(out.observation)
    return out._replace(observation=env.kept, final_observation=out.final_observation)


def one_endless(_: Changed, out: EnvStep) -> EnvStep:
    running = torch.ones_like(out.terminated)
    running[0, 1] = False
    return out._replace(terminated=out.terminated & running, truncated=out.truncated & running)


def never_moves(_: Changed, out: EnvStep) -> EnvStep:
    return out._replace(
        observation=torch.ones_like(out.observation), final_observation=torch.ones_like(out.observation)
    )


FAULTS: Sequence[tuple[Change, str, str]] = [
    (with_nan, "NaN", "the reward of environment 2 of member 0 is NaN in step 1"),
    (
        lambda _, out: out._replace(observation=out.observation * float("nan")),
        "NaN",
        "the observation of environment 0 of member 0 is NaN in step 1",
    ),
    (
        lambda _, out: out._replace(reward=out.reward[..., :-1]),
        "shape",
        "reward of step 1 has the shape (2, 3), the contract asks for (2, 4)",
    ),
    (
        lambda _, out: out._replace(reward=out.reward.long()),
        "dtype",
        "reward of step 1 has the dtype torch.int64, the contract asks for a floating-point number",
    ),
    (
        lambda _, out: out._replace(terminated=out.terminated.long()),
        "dtype",
        "terminated of step 1 has the dtype torch.int64, the contract asks for bool",
    ),
    (lambda _, out: out._replace(reward=0.0), "dtype", "reward of step 1 is of type float; return a torch tensor"),
    (
        lambda _, out: out._replace(reward=out.reward.to("meta")),
        "device",
        "reward of step 1 is on the device meta, the environment says cpu",
    ),
    (
        lambda _, out: out._replace(reward=out.reward + random.random()),
        "seed",
        "two runs of the same seed and actions differ: reward of environment 0 of member 0 at step 1",
    ),
    (one_endless, "end of episodes", "an episode never ends: no episode of environment 1 of member 0 was terminated"),
    (
        lambda _, out: out._replace(final_observation=out.observation),
        "final observation",
        "the final observation is lost at a reset",
    ),
    (
        lambda _, out: out._replace(truncated=out.truncated | out.terminated, terminated=out.truncated),
        "flags",
        "was terminated and truncated in step",
    ),
    (reused, "outputs", "step 2 overwrote the observation that was returned before it"),
    (lambda _, out: tuple(out), "fields", "step() returned tuple without observation; return an EnvStep"),
    (lambda _, out: 1 // 0, "error", "ZeroDivisionError"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "rule", "message"), FAULTS, ids=lambda x: x if isinstance(x, str) else "")
def test_faults_are_told_in_words(change: Change, rule: str, message: str) -> None:
    found = faults(change, max_steps=200)
    assert message in found[rule]


def test_environment_that_keeps_the_contract_has_no_faults() -> None:
    assert faults(lambda _, out: out) == {}


def test_constant_observations_are_no_fault() -> None:
    """A bandit's final observation is that of its next episode."""

    class Bandit(Changed):
        def reset(self, seed: int) -> Tensor:
            return torch.ones_like(super().reset(seed))

        def resume(self, state: Mapping[str, Tensor]) -> Tensor:
            return torch.ones_like(super().resume(state))

    assert check_env(lambda envs, members: Bandit(change=never_moves, envs=envs, members=members)) == []


def test_state_that_survives_a_reset_is_told() -> None:
    class Leaky(Drift):
        seen = 0.0

        def step(self, action: Tensor) -> EnvStep:
            out = super().step(action)
            self.seen += 0.01
            return out._replace(reward=out.reward + self.seen)

    (fault,) = check_env(lambda envs, members: Leaky(envs=envs, members=members))
    assert fault.rule == "seed"
    assert "a second reset(seed) of the same environment" in fault.message


def test_one_stream_for_all_members_is_told() -> None:
    class Shared(Drift):
        def normal(self, *shape: int) -> Tensor:
            return torch.randn(self.members, self.envs, *shape, generator=self._generators[0])

    found = {fault.rule: fault.message for fault in check_env(lambda e, m: Shared(envs=e, members=m))}
    assert "member 5 by itself" in found["members"]


def test_incomplete_checkpoint_is_told() -> None:
    class Forgetful(Drift):
        def resume(self, state: Mapping[str, Tensor]) -> Tensor:
            super().resume(state)
            self._age.zero_()
            return self.observe(self._state)

    found = {fault.rule: fault.message for fault in check_env(lambda e, m: Forgetful(envs=e, members=m))}
    assert "resume(checkpoint())" in found["resume"]


def test_changed_action_is_told() -> None:
    class Clipping(Drift):
        def step(self, action: Tensor) -> EnvStep:
            return super().step(action.clamp_(-1, 1))

    found = {fault.rule: fault.message for fault in check_env(lambda e, m: Clipping(envs=e, members=m))}
    assert "changed the action" in found["inputs"]


def test_closed_after_the_check() -> None:
    closed = []

    class Closable(Drift):
        def close(self) -> None:
            closed.append(self)

    assert check_env(lambda envs, members: Closable(envs=envs, members=members)) == []
    assert len(closed) == 3
