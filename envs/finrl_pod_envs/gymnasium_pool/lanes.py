"""Lanes of a pool: the memory block they share, and one Gymnasium environment with its episodes and seeds.

Needs numpy and Gymnasium, not torch: worker processes import it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finrl_pod.errors import ConfigError
from finrl_pod_envs.gymnasium_pool.spaces import Flattener, Shapes, make_gymnasium, to_action

CACHE_LINE = 64  # bytes; arrays of a block never share one


class Block:
    """Arrays of L lanes in one block of memory, for exchange between the environment and its workers.

    row, final: [L, S] float32, the current observation and the one before a reset. action: [L, C] float32. reward: [L]
    float64. terminated, truncated: [L] bool. episode: [L] int64, number of the current episode.
    """

    row: NDArray[np.float32]
    final: NDArray[np.float32]
    action: NDArray[np.float32]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    episode: NDArray[np.int64]

    def __init__(self, lanes: int, row: int, columns: int, memory: Any = None) -> None:
        """memory: a writable shared buffer of `block_size` bytes; None allocates a private one."""
        dtype = _block_dtype(lanes, row, columns)
        block = np.frombuffer(bytearray(dtype.itemsize) if memory is None else memory, dtype, 1)
        for name in dtype.names or ():
            setattr(self, name, block[name][0])


def block_size(lanes: int, row: int, columns: int) -> int:
    """Bytes of a block."""
    return _block_dtype(lanes, row, columns).itemsize


def _block_dtype(lanes: int, row: int, columns: int) -> np.dtype[Any]:
    arrays = [
        ("row", np.float32, (lanes, row)),
        ("final", np.float32, (lanes, row)),
        ("action", np.float32, (lanes, columns)),
        ("reward", np.float64, (lanes,)),
        ("terminated", np.bool_, (lanes,)),
        ("truncated", np.bool_, (lanes,)),
        ("episode", np.int64, (lanes,)),
    ]
    ends = np.cumsum([-(-np.dtype(array[1:]).itemsize // CACHE_LINE) * CACHE_LINE for array in arrays]).tolist()
    layout: Any = {
        "names": [array[0] for array in arrays],
        "formats": [array[1:] for array in arrays],
        "offsets": [0, *ends[:-1]],
        "itemsize": ends[-1],
    }
    dtype: np.dtype[Any] = np.dtype(layout)
    return dtype


@dataclass(frozen=True)
class LanePlan:
    """Name and shapes of the environments of a pool, and the seed stream of each lane."""

    name: str
    shapes: Shapes
    streams: tuple[int, ...]


def episode_seed(stream: int, episode: int) -> int:
    """Seed of an episode, from lane stream and number only: any episode can be repeated."""
    return int(np.random.SeedSequence([stream, episode]).generate_state(1, np.uint32)[0])


def describe_failure(error: Exception) -> str:
    """Type, message and location of an error raised by an environment."""
    location = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({location.filename}, line {location.lineno})"


class Lane:
    """One Gymnasium environment: it reads its action from lane `index` of a block and writes the outcome there."""

    def __init__(self, name: str, shapes: Shapes, stream: int, block: Block, index: int) -> None:
        self.env = make_gymnasium(name)
        self._name = name
        self._shapes = shapes
        self._stream = stream
        self._block = block
        self._index = index
        self._row = Flattener(self.env.observation_space, name)

    def begin(self, episode: int) -> None:
        """Start an episode by its number."""
        observation, _ = self.env.reset(seed=episode_seed(self._stream, episode))
        self._block.row[self._index] = self._row(observation)
        self._block.episode[self._index] = episode

    def step(self) -> None:
        """Step once; at the end of an episode the next one starts in the same call."""
        block = self._block
        i = self._index
        observation, reward, terminated, truncated, _ = self.env.step(to_action(block.action[i], self._shapes))
        row = self._row(observation)
        block.row[i] = block.final[i] = row
        block.reward[i] = reward if isinstance(reward, float) else self._to_number(reward)
        # An environment may terminate at the very step of its time limit: that counts as terminated.
        block.terminated[i] = terminated
        block.truncated[i] = truncated and not terminated
        if terminated or truncated:
            self.begin(int(block.episode[i]) + 1)

    def repeat(
        self, episode: int, actions: Sequence[NDArray[np.float32]], after_each: Callable[[], None] = lambda: None
    ) -> None:
        """Restore an episode by repeating its actions; environments are deterministic under a seed."""
        self.begin(episode)
        observation = None
        for action in actions:
            observation, *_ = self.env.step(to_action(np.asarray(action, dtype=np.float32), self._shapes))
            after_each()
        if observation is not None:
            self._block.row[self._index] = self._row(observation)

    def _to_number(self, reward: Any) -> float:
        values = np.asarray(reward)
        if values.size != 1 or values.dtype.kind not in "fiub":
            raise ConfigError(
                f"{self._name} returned a reward of {reward!r}, a reward must be one number; fix the environment"
            )
        return float(values.item())

    def close(self) -> None:
        self.env.close()
