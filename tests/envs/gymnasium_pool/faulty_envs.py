"""Gymnasium environments that fail on purpose: "gym:tests.envs.gymnasium_pool.faulty_envs:Odd-v0".

The reward is the process id; the observation holds the step count and the last action. An episode terminates after 6
steps, or is truncated after 4 if the first random number of its seed is odd.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

NAME = "gym:tests.envs.gymnasium_pool.faulty_envs:{}-v0"


class Odd(gymnasium.Env[Any, Any]):
    """failure_file: file that holds die, hang or raise; the third step of the next episode reads and removes it."""

    observation_space = gymnasium.spaces.Box(-100, 100, (3,), np.float32)
    action_space = gymnasium.spaces.Box(np.float32([-2, 0]), np.float32([2, 10]), (2,), np.float32)

    def __init__(self, failure_file: str = "", shape: int = 3) -> None:
        self.failure_file = os.environ.get("ODD_FAILURE_FILE", failure_file)
        self.shape = shape

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.odd = 0, bool(self.np_random.integers(2))
        self.start = float(self.np_random.random())
        return self._observation(np.zeros(2)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        if self.count == 3 and self.failure_file and (failure := self._take_failure()):
            if failure == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if failure == "hang":
                time.sleep(600)
            raise ValueError("the simulator is in an invalid state")
        return self._observation(action), float(os.getpid()), self.count >= 6, self.odd and self.count >= 4, {}

    def _take_failure(self) -> str:
        """Read the failure and remove the file, so that only one process fails; empty if there is no file."""
        taken = Path(f"{self.failure_file}.{os.getpid()}")
        try:
            Path(self.failure_file).rename(taken)
        except FileNotFoundError:
            return ""
        return taken.read_text()

    def _observation(self, action: Any) -> Any:
        return np.asarray([self.start + self.count, *action][: self.shape], np.float32)


class Endless(Odd):
    """Episodes without an end; the reward is 1."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation(action), 1.0, False, False, {}


gymnasium.register("Odd-v0", Odd)
gymnasium.register("Endless-v0", Endless)
gymnasium.register("Short-v0", Odd, kwargs={"shape": 2})


class Reward(Odd):
    """reward: reward of the third step, or an exception to raise there."""

    def __init__(self, reward: Any) -> None:
        super().__init__()
        self.reward = reward

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        row, _, terminated, truncated, info = super().step(action)
        if self.count == 3 and isinstance(self.reward, BaseException):
            raise self.reward
        return row, self.reward if self.count == 3 else 1.0, terminated, truncated, info


gymnasium.register("NoNumber-v0", Reward, kwargs={"reward": float("nan")})
gymnasium.register("NoReward-v0", Reward, kwargs={"reward": None})
gymnasium.register("Broken-v0", Reward, kwargs={"reward": ValueError("it broke")})


class Spaces(Odd):
    """Environment with the given spaces; asserts that actions are in its action space."""

    def __init__(self, observations: Any = Odd.observation_space, actions: Any = Odd.action_space) -> None:
        super().__init__()
        self.observation_space, self.action_space = observations, actions

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        return super().step(np.zeros(2))


class Gap(Odd):
    """Its second observation, and the first of odd episodes, have a NaN."""

    def _observation(self, action: Any) -> Any:
        row = super()._observation(action)
        if self.count == 2 or (self.count == 0 and self.odd):
            row[1] = np.nan
        return row


class Four(Odd):
    """A step of old versions of Gym."""

    def step(self, action: Any) -> Any:
        row, reward, terminated, _, info = super().step(action)
        return row, reward, terminated, info


class Words(Odd):
    """Observations are words."""

    def _observation(self, action: Any) -> Any:
        return ["one", "two", "three"]


gymnasium.register("Gap-v0", Gap)
gymnasium.register("Words-v0", Words)
gymnasium.register("Exits-v0", Reward, kwargs={"reward": SystemExit(3)})
gymnasium.register("Four-v0", Four)
gymnasium.register("FourLimited-v0", Four, max_episode_steps=10)
gymnasium.register("Always-v0", Reward, kwargs={"reward": ValueError("in every episode")})

Box = gymnasium.spaces.Box
gymnasium.register(
    "Wide-v0", Spaces, kwargs={"actions": Box(np.array([-0.1, -0.3]), np.array([0.1, 0.7]), (2,), np.float64)}
)
gymnasium.register("Whole-v0", Spaces, kwargs={"actions": Box(0, 5, (2,), np.int32)})
gymnasium.register("Idle-v0", Spaces, kwargs={"actions": Box(0, 1, (0,), np.float32)})
gymnasium.register("Parts-v0", Spaces, kwargs={"actions": gymnasium.spaces.MultiDiscrete([3, 2], start=[1, 0])})
gymnasium.register("Bits-v0", Spaces, kwargs={"actions": gymnasium.spaces.MultiBinary(3)})
gymnasium.register("Many-v0", Spaces, kwargs={"actions": gymnasium.spaces.MultiDiscrete([100, 100])})
gymnasium.register("Blind-v0", Spaces, kwargs={"observations": Box(0, 1, (0,), np.float32)})


def failing_factory() -> Odd:
    raise OSError("no such simulator")


gymnasium.register("Unmakable-v0", failing_factory)
gymnasium.register("Free-v0", lambda: gymnasium.wrappers.TransformAction(Odd(), lambda x: x, FREE))
FREE = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
