"""The numbers that pass between the environment and whoever steps its lanes: one block of memory, in named arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNED = 64  # bytes; no two arrays share a cache line


class Block:
    """L lanes. row, final: [L, S] float32, what is to be answered, and what was there before a reset; action: [L, C]
    float32; reward: [L] float64; terminated, truncated: [L] bool; episode: [L] int64, of each lane's own count."""

    row: NDArray[np.float32]
    final: NDArray[np.float32]
    action: NDArray[np.float32]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    episode: NDArray[np.int64]

    def __init__(self, lanes: int, row: int, columns: int, memory: Any = None) -> None:
        """memory: a writable buffer of `size_of` bytes that others share, None for one of its own."""
        buffer = bytearray(size_of(lanes, row, columns)) if memory is None else memory
        start = 0
        for name, shape, dtype in _fields(lanes, row, columns):
            count = math.prod(shape)
            values = np.frombuffer(buffer, dtype, count, start).reshape(shape)
            setattr(self, name, values)
            start += _padded(count * np.dtype(dtype).itemsize)


def size_of(lanes: int, row: int, columns: int) -> int:
    """Bytes of a block."""
    return sum(_padded(math.prod(shape) * np.dtype(dtype).itemsize) for _, shape, dtype in _fields(lanes, row, columns))


def _fields(lanes: int, row: int, columns: int) -> list[tuple[str, tuple[int, ...], Any]]:
    return [
        ("row", (lanes, row), np.float32),
        ("final", (lanes, row), np.float32),
        ("action", (lanes, columns), np.float32),
        ("reward", (lanes,), np.float64),
        ("terminated", (lanes,), np.bool_),
        ("truncated", (lanes,), np.bool_),
        ("episode", (lanes,), np.int64),
    ]


def _padded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
