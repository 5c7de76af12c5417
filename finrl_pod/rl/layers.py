"""Layers for R networks at once: parameters [R, I, O], inputs [R, B, I], one batched product each.

R is members times whatever each of them has several of, such as critics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch

from finrl_pod.types import Tensor


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [R, ..., I] @ weight [R, I, O] + bias [R, O] -> [R, ..., O]."""
    if x.dim() == 3:
        return torch.baddbmm(bias.unsqueeze(1), x, weight)
    rows = x.reshape(x.shape[0], -1, x.shape[-1])  # [R, B, I]
    return torch.baddbmm(bias.unsqueeze(1), rows, weight).view(*x.shape[:-1], weight.shape[-1])


def product(x: Tensor, weight: Tensor) -> Tensor:
    """The same without a bias."""
    rows = x.reshape(x.shape[0], -1, x.shape[-1])
    return torch.bmm(rows, weight).view(*x.shape[:-1], weight.shape[-1])


def uniform(rows: int, cols: int, fan_in: int, stream: torch.Generator, dtype: torch.dtype) -> Tensor:
    """[rows, cols] uniform within 1 / sqrt(fan_in), as `torch.nn.Linear` begins."""
    bound = 1 / math.sqrt(fan_in)
    return (torch.rand(rows, cols, generator=stream, dtype=dtype) * 2 - 1) * bound


def mlp_init(sizes: Sequence[int], stream: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
    """One network's tensors w0 [I, H], b0 [H], w1, ... for layers of these sizes."""
    tensors = {}
    for i, (fan_in, out) in enumerate(pairwise(sizes)):
        tensors[f"w{i}"] = uniform(fan_in, out, fan_in, stream, dtype)
        tensors[f"b{i}"] = uniform(1, out, fan_in, stream, dtype)[0]
    return tensors


def mlp(params: Mapping[str, Tensor], x: Tensor, layers: int) -> Tensor:
    """x [R, B, I] through so many layers with rectifiers between them: [R, B, O]."""
    for i in range(layers - 1):
        x = torch.relu_(affine(x, params[f"w{i}"], params[f"b{i}"]))
    return affine(x, params[f"w{layers - 1}"], params[f"b{layers - 1}"])
