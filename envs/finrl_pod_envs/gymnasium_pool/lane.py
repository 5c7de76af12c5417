"""One Gymnasium environment of a pool: its spec, its episodes and their seeds, a reset in the step that ends one."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finrl_pod.errors import ConfigError
from finrl_pod_envs.gymnasium_pool.block import Block
from finrl_pod_envs.gymnasium_pool.spaces import Flattener, Shapes, make_gymnasium, to_action


@dataclass(frozen=True)
class Plan:
    """Environments of one name, with a seed stream for each lane."""

    name: str
    shapes: Shapes
    streams: tuple[int, ...]


def episode_seed(stream: int, episode: int) -> int:
    """Seed of a lane's episode, of its stream and the episode's number alone: any episode can be begun again."""
    return int(np.random.SeedSequence([stream, episode]).generate_state(1, np.uint32)[0])


def failure(error: Exception) -> str:
    """What an environment raised, and where."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})"


class Lane:
    """Reads its action from lane `place` of a block, and writes there what came of it."""

    def __init__(self, name: str, shapes: Shapes, stream: int, block: Block, place: int) -> None:
        self.env = make_gymnasium(name)
        self._name, self._shapes, self._stream, self._block, self._place = name, shapes, stream, block, place
        self._row = Flattener(self.env.observation_space, name)

    def begin(self, episode: int) -> None:
        """An episode by its number, from its start."""
        observation, _ = self.env.reset(seed=episode_seed(self._stream, episode))
        self._block.row[self._place] = self._row(observation)
        self._block.episode[self._place] = episode

    def step(self) -> None:
        """One step; where it ends the episode, the next one begins at once."""
        block, i = self._block, self._place
        observation, reward, terminated, truncated, _ = self.env.step(to_action(block.action[i], self._shapes))
        row = self._row(observation)
        block.row[i] = block.final[i] = row
        block.reward[i] = reward if isinstance(reward, float) else self._number(reward)
        # An environment may end by itself at the very step at which its time is over: that is an end.
        block.terminated[i], block.truncated[i] = terminated, truncated and not terminated
        if terminated or truncated:
            self.begin(int(block.episode[i]) + 1)

    def repeat(
        self, episode: int, actions: Sequence[NDArray[np.float32]], after_each: Callable[[], None] = lambda: None
    ) -> None:
        """An episode up to where these actions led. Environments repeat exactly under a seed, so this is its state."""
        self.begin(episode)
        observation = None
        for action in actions:
            observation, *_ = self.env.step(to_action(np.asarray(action, dtype=np.float32), self._shapes))
            after_each()
        if observation is not None:
            self._block.row[self._place] = self._row(observation)

    def _number(self, reward: Any) -> float:
        values = np.asarray(reward)
        if values.size != 1 or values.dtype.kind not in "fiub":
            raise ConfigError(
                f"{self._name} returned a reward of {reward!r}, and a reward is one number; mend the environment"
            )
        return float(values.item())

    def close(self) -> None:
        self.env.close()
