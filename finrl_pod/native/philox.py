"""Random numbers of all members in one launch: the counter-based generator Philox-4x32-10.

Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3". A number is a function of a key
for a member and a purpose, of how often the member drew before, and of its place in the draw. A draw
therefore has no state but a count on the device, needs no launch for each member, and can be part of a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch

from finrl_pod.native.device import on_device
from finrl_pod.native.kernel_launch import launch, use_triton, with_fallback
from finrl_pod.random import ComputedSteps, MemberGenerators, RandomSource, Steps, generators, key
from finrl_pod.types import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF  # mask of 32 bits
BLOCK = 256  # counters of a program, four numbers each

Kind = Literal["words", "uniform", "normal"]


def random_source(seed: int, members: Sequence[int], purpose: str, device: torch.device) -> RandomSource:
    """Random numbers of the members: Philox on GPUs, generators of torch on CPUs."""
    if on_device(device):
        return PhiloxGenerator([key(seed, member, purpose) for member in members], device)
    return MemberGenerators(generators(seed, members, purpose, device))


class PhiloxGenerator:
    """Philox-4x32-10 of P members; draws are [P, ...], or have the members in dimension `dim`."""

    def __init__(self, keys: Sequence[int], device: torch.device | str = "cpu") -> None:
        """keys: one of 64 bits for each member."""
        # As the int64 with the same 64 bits.
        self.keys = torch.tensor([k - (1 << 64) if k >= 1 << 63 else k for k in keys], device=device)
        self.counts = torch.zeros_like(self.keys)  # draws so far
        self.members = [_MemberCount(self.counts, p) for p in range(len(keys))]

    def normal(self, shape: tuple[int, ...], dtype: torch.dtype, dim: int = 0) -> Tensor:
        """Standard normal numbers, by Box and Muller 1958."""
        return self._draw("normal", shape, dtype, dim)

    def uniform(self, shape: tuple[int, ...], dtype: torch.dtype, dim: int = 0) -> Tensor:
        """Multiples of 2^-24 in [0, 1)."""
        return self._draw("uniform", shape, dtype, dim)

    def exponential(self, shape: tuple[int, ...], dtype: torch.dtype, dim: int = 0) -> Tensor:
        """Numbers of the standard exponential distribution, above 0."""
        return -torch.log1p(-self._draw("uniform", shape, dtype, dim)).clamp(max=-(2.0**-25))

    def integers(self, high: int, shape: tuple[int, ...], dim: int = 0) -> Tensor:
        """Integers in [0, high), int64; their probabilities differ by at most 2^-32."""
        return (self._draw("words", shape, torch.int64, dim) * high) >> 32

    def permutation(self, n: int) -> Tensor:
        """A random order of n items for each member: [P, n] int64."""
        return torch.argsort(self._draw("words", (n,), torch.int64, 0), dim=1, stable=True)

    def normal_steps(self, steps: int, shape: tuple[int, ...], dtype: torch.dtype) -> Steps:
        """Standard normal numbers [P, *shape] of each step, computed whenever they are read: nothing is stored.

        At 2^17 accounts of 30 assets and 64 steps they would be 1 GB.
        """
        first = self.counts.clone()
        self.counts += steps
        size = math.prod(shape)
        members = len(self.keys)

        def numbers_of(step: int) -> Tensor:
            return philox(self.keys, first + step, size, "normal", dtype).view(members, *shape)

        return ComputedSteps(steps, dtype, numbers_of)

    def _draw(self, kind: Kind, shape: tuple[int, ...], dtype: torch.dtype, dim: int) -> Tensor:
        numbers = philox(self.keys, self.counts, math.prod(shape), kind, dtype).view(len(self.keys), *shape)
        self.counts += 1
        return numbers.movedim(0, dim).contiguous() if dim else numbers


class _MemberCount:
    """State of one member: how often it drew."""

    def __init__(self, counts: Tensor, member: int) -> None:
        self._counts = counts
        self._member = member

    def get_state(self) -> Tensor:
        return self._counts[self._member].cpu().clone()

    def set_state(self, state: Tensor) -> None:
        self._counts[self._member].copy_(state)


@with_fallback
def philox(keys: Tensor, counts: Tensor, n: int, kind: Kind, dtype: torch.dtype) -> Tensor:
    """n numbers for each key: [P, n]. keys: [P] int64; counts: [P] int64, the number of the draw.

    kind: "words", integers of 32 bits; "uniform" in [0, 1); "normal". Number 4 i + j is word j of the counter
    (i, 0, count, 0), or made of words j and j + 1 in pairs for normal numbers.
    """
    members = len(keys)
    counters = -(-n // 4)
    if use_triton(keys) and n:
        from finrl_pod.native import triton_philox

        out = torch.empty(members, n, dtype=dtype, device=keys.device)
        blocks = -(-counters // BLOCK)
        launch(triton_philox.philox, (members * blocks,), keys, counts, out, n, blocks, KIND=kind, BLOCK=BLOCK)
        return out
    index = torch.arange(counters, device=keys.device).expand(members, counters)
    count = counts.unsqueeze(1).expand_as(index)
    counter = (index & WORD, index >> 32, count & WORD, (count >> 32) & WORD)
    words = torch.stack(philox_rounds(counter, (keys & WORD, (keys >> 32) & WORD)), -1)  # [P, blocks, 4]
    if kind == "words":
        numbers = words
    elif kind == "uniform":
        numbers = (words >> 8).to(dtype) * 2.0**-24
    else:
        radius = (-2 * (words[..., ::2].to(dtype) * 2.0**-32 + 2.0**-33).log()).sqrt()
        angle = words[..., 1::2].to(dtype) * (2 * math.pi * 2.0**-32)
        numbers = torch.stack([radius * angle.cos(), radius * angle.sin()], -1)
    return numbers.reshape(members, -1)[:, :n].contiguous()


def philox_rounds(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words of 32 bits for counters [P, B] and keys [P], in int64."""
    a, b, c, d = counter
    low, high = (x.unsqueeze(1) for x in key)
    for _ in range(ROUNDS):
        first = MULTIPLIERS[0] * a
        second = MULTIPLIERS[1] * c  # of 64 bits; those above are not needed
        a = (second >> 32) & WORD ^ b ^ low
        b = second & WORD
        c = (first >> 32) & WORD ^ d ^ high
        d = first & WORD
        low = (low + KEY_STEPS[0]) & WORD
        high = (high + KEY_STEPS[1]) & WORD
    return a, b, c, d
