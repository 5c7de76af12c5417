"""Layers for R networks at once: parameters [R, I, O], inputs [R, B, I], one batched product each.

R is members times whatever each of them has several of, such as critics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

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
    tensors = [params[f"{kind}{i}"] for i in range(layers) for kind in "wb"]
    out: Tensor = _Mlp.apply(x, *tensors)  # type: ignore[no-untyped-call]
    return out


class _Mlp(torch.autograd.Function):
    """The whole network as one step of automatic differentiation, with its gradient written out.

    On a CPU the bookkeeping of small layers costs more than their products: one SAC update of two 64x64 critics takes
    a third of the time that it takes layer by layer. What nobody asks for (the gradient of fixed weights, of inputs
    that are data) is not computed.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *tensors: Tensor) -> Tensor:
        """x [R, B, I]; tensors: w0 [R, I, H], b0 [R, H], w1, ..."""
        inputs = [x]
        last = len(tensors) - 2
        for i in range(0, last, 2):
            x = torch.baddbmm(tensors[i + 1].unsqueeze(1), x, tensors[i]).relu_()
            inputs.append(x)
        ctx.layers = len(inputs)
        ctx.save_for_backward(*inputs, *tensors[::2])
        return torch.baddbmm(tensors[last + 1].unsqueeze(1), x, tensors[last])

    @staticmethod
    def backward(ctx: Any, *outward: Tensor) -> tuple[Tensor | None, ...]:
        """d loss / d output [R, B, O] -> the same for x, w0, b0, w1, ...; None where it is not needed."""
        (gradient,) = outward
        saved, layers = ctx.saved_tensors, ctx.layers
        inputs, weights = saved[:layers], saved[layers:]
        needed = ctx.needs_input_grad
        out: list[Tensor | None] = [None] * (1 + 2 * layers)
        for i in range(layers - 1, -1, -1):
            if needed[1 + 2 * i]:
                out[1 + 2 * i] = torch.bmm(inputs[i].transpose(1, 2), gradient)
                out[2 + 2 * i] = gradient.sum(1)
            if i or needed[0]:
                gradient = torch.bmm(gradient, weights[i].transpose(1, 2))
                if i:
                    # Where a rectifier gave 0, nothing passes.
                    gradient = torch.ops.aten.threshold_backward(gradient, inputs[i], 0)
        if needed[0]:
            out[0] = gradient
        return tuple(out)
