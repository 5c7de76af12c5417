"""Random generators keyed by (seed, member, purpose).

A member draws the same numbers whether it trains by itself or in a population, and drawing more for one purpose does
not shift the numbers of another.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch


def key(seed: int, member: int, purpose: str) -> int:
    """63-bit seed mixed from seed, member and purpose by SeedSequence of numpy.

    The CPU generator of torch uses the low 32 bits: among 30,000 generators two coincide with a probability of 0.1.
    """
    words = np.random.SeedSequence([seed, member, zlib.crc32(purpose.encode())]).generate_state(2, np.uint32)
    return int(words[0]) | (int(words[1]) & 0x7FFFFFFF) << 32


def generator(seed: int, member: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Generator for one member and purpose."""
    return torch.Generator(device).manual_seed(key(seed, member, purpose))


def generators(
    seed: int, members: Sequence[int], purpose: str, device: torch.device | str = "cpu"
) -> list[torch.Generator]:
    """Generators for each member, in order."""
    return [generator(seed, member, purpose, device) for member in members]


class RandomState(Protocol):
    """State of the random numbers of one member, as `torch.Generator` has it."""

    def get_state(self) -> torch.Tensor: ...

    def set_state(self, state: torch.Tensor, /) -> object: ...


class Steps(Protocol):
    """Random numbers of H steps, such as a tensor [H, ...]."""

    @property
    def dtype(self) -> torch.dtype: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[torch.Tensor]: ...

    def __getitem__(self, step: int, /) -> torch.Tensor: ...


class ComputedSteps:
    """`Steps` that are computed whenever they are read."""

    def __init__(self, count: int, dtype: torch.dtype, numbers_of: Callable[[int], torch.Tensor]) -> None:
        """count: H. numbers_of: the numbers of step h."""
        self.dtype = dtype
        self._count = count
        self._numbers_of = numbers_of

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(self._numbers_of, range(self._count))

    def __getitem__(self, step: int, /) -> torch.Tensor:
        return self._numbers_of(step)


class RandomSource(Protocol):
    """Independent random numbers of P members: [P, *shape], with P in dimension `dim`."""

    @property
    def members(self) -> Sequence[RandomState]:
        """The state of each member."""

    def normal(self, shape: tuple[int, ...], dtype: torch.dtype, dim: int = 0) -> torch.Tensor:
        """Standard normal numbers."""

    def normal_steps(self, steps: int, shape: tuple[int, ...], dtype: torch.dtype) -> Steps:
        """Standard normal numbers [P, *shape] of each of H steps."""

    def uniform(self, shape: tuple[int, ...], dtype: torch.dtype, dim: int = 0) -> torch.Tensor:
        """Numbers in [0, 1)."""

    def exponential(self, shape: tuple[int, ...], dtype: torch.dtype, dim: int = 0) -> torch.Tensor:
        """Numbers of the standard exponential distribution."""

    def integers(self, high: int, shape: tuple[int, ...], dim: int = 0) -> torch.Tensor:
        """Integers in [0, high), int64."""

    def permutation(self, n: int) -> torch.Tensor:
        """A random order of n items for each member: [P, n] int64."""


def members_of(*sources: RandomSource | None) -> list[RandomState]:
    """States of all members of the sources, in order."""
    return [state for source in sources if source is not None for state in source.members]


class MemberGenerators:
    """A `RandomSource` of one torch generator a member."""

    def __init__(self, members: Sequence[torch.Generator]) -> None:
        self.members = list(members)
        self._device = members[0].device

    @property
    def state(self) -> torch.Tensor:
        """State of all members: [P, bytes] uint8."""
        return torch.stack([g.get_state() for g in self.members])

    @state.setter
    def state(self, state: torch.Tensor) -> None:
        for g, row in zip(self.members, state, strict=True):
            g.set_state(row.clone())  # a view would be read from the start of its storage

    def normal(self, shape: tuple[int, ...], dtype: torch.dtype, dim: int = 0) -> torch.Tensor:
        numbers = [torch.randn(shape, generator=g, dtype=dtype, device=self._device) for g in self.members]
        return torch.stack(numbers, dim)

    def normal_steps(self, steps: int, shape: tuple[int, ...], dtype: torch.dtype) -> Steps:
        return self.normal((steps, *shape), dtype, dim=1)

    def uniform(self, shape: tuple[int, ...], dtype: torch.dtype, dim: int = 0) -> torch.Tensor:
        numbers = [torch.rand(shape, generator=g, dtype=dtype, device=self._device) for g in self.members]
        return torch.stack(numbers, dim)

    def exponential(self, shape: tuple[int, ...], dtype: torch.dtype, dim: int = 0) -> torch.Tensor:
        empty = [torch.empty(shape, dtype=dtype, device=self._device) for _ in self.members]
        return torch.stack([x.exponential_(generator=g) for x, g in zip(empty, self.members, strict=True)], dim)

    def integers(self, high: int, shape: tuple[int, ...], dim: int = 0) -> torch.Tensor:
        return torch.stack([torch.randint(high, shape, generator=g, device=self._device) for g in self.members], dim)

    def permutation(self, n: int) -> torch.Tensor:
        return torch.stack([torch.randperm(n, generator=g, device=self._device) for g in self.members])
