"""A Gymnasium environment that can draw itself in every way, for tests: it counts to its limit."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np

LIMIT = 5
NAME = "gym:tests.app.environment_training.drawn_env:Drawn-v0"


class Drawn(gymnasium.Env[Any, Any]):
    """Reward 1 a step; the frame's grey level is ten times the step."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._row(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._row(), 1.0, self.count == LIMIT, False, {}

    def render(self) -> Any:
        if self.render_mode == "ansi":
            return f"at {self.count}"
        return np.full((6, 8, 3), 10 * self.count, np.uint8)

    def _row(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


gymnasium.register("Drawn-v0", entry_point=Drawn)
