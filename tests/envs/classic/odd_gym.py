"""Gymnasium environments that misbehave on purpose: "gym:tests.envs.classic.odd_gym:Odd-v0".

The reward of a step is the number of the environment's process, its observation counts steps and says the last action;
an episode ends after 6 steps, or is cut off after 4 where the first random number of its seed is odd.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

NAME = "gym:tests.envs.classic.odd_gym:{}-v0"


class Odd(gymnasium.Env[Any, Any]):
    """trouble: a file whose content says what goes wrong in the step after the episode's second: die, hang, raise."""

    observation_space = gymnasium.spaces.Box(-100, 100, (3,), np.float32)
    action_space = gymnasium.spaces.Box(np.float32([-2, 0]), np.float32([2, 10]), (2,), np.float32)

    def __init__(self, trouble: str = "", shape: int = 3) -> None:
        self.trouble = os.environ.get("ODD_TROUBLE", trouble)
        self.shape = shape

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.odd = 0, bool(self.np_random.integers(2))
        self.start = float(self.np_random.random())
        return self._seen(np.zeros(2)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        if self.count == 3 and self.trouble and (what := self._met()):
            if what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "hang":
                time.sleep(600)
            raise ValueError("the simulator lost its mind")
        return self._seen(action), float(os.getpid()), self.count >= 6, self.odd and self.count >= 4, {}

    def _met(self) -> str:
        """The trouble, for whoever takes it first."""
        taken = Path(f"{self.trouble}.{os.getpid()}")
        try:
            Path(self.trouble).rename(taken)
        except FileNotFoundError:
            return ""
        return taken.read_text()

    def _seen(self, action: Any) -> Any:
        return np.asarray([self.start + self.count, *action][: self.shape], np.float32)


gymnasium.register("Odd-v0", Odd)
gymnasium.register("Short-v0", Odd, kwargs={"shape": 2})
gymnasium.register("Free-v0", lambda: gymnasium.wrappers.TransformAction(Odd(), lambda x: x, FREE))
FREE = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
