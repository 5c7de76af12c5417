"""Layers of R networks at once: parameters [R, I, O], inputs [R, B, I], one batched matrix product each.

R is members times the networks that each has, such as critics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from finrl_pod.types import Tensor

Params = Mapping[str, Tensor]  # weights of R networks by name: [R, ...]


def select_items(x: Tensor, indices: Tensor) -> Tensor:
    """Items of x [P, I, ...] at indices [P, M]: [P, M, ...]."""
    p, items = x.shape[:2]
    if p == 1:
        return x[0].index_select(0, indices[0]).unsqueeze(0)
    flat = indices + torch.arange(0, p * items, items, device=x.device).unsqueeze(1)
    return x.reshape(p * items, *x.shape[2:]).index_select(0, flat.reshape(-1)).view(*indices.shape, *x.shape[2:])


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Affine layer: x [R, ..., I] @ weight [R, I, O] + bias [R, O] -> [R, ..., O]."""
    if x.dim() == 3:
        return torch.baddbmm(bias.unsqueeze(1), x, weight)
    rows = x.reshape(x.shape[0], -1, x.shape[-1])  # [R, B, I]
    return torch.baddbmm(bias.unsqueeze(1), rows, weight).view(*x.shape[:-1], weight.shape[-1])


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Linear layer without bias: x [R, ..., I] @ weight [R, I, O] -> [R, ..., O]."""
    rows = x.reshape(x.shape[0], -1, x.shape[-1])
    return torch.bmm(rows, weight).view(*x.shape[:-1], weight.shape[-1])


def uniform(rows: int, cols: int, fan_in: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """[rows, cols] uniform within 1 / sqrt(fan_in), the default of `torch.nn.Linear`."""
    limit = 1 / math.sqrt(fan_in)
    return (torch.rand(rows, cols, generator=generator, dtype=dtype) * 2 - 1) * limit


def uniform_init(generator: torch.Generator, dtype: torch.dtype) -> Callable[[int, int, float], Tensor]:
    """`uniform` with fan_in = rows as an initialiser of matrices (rows, cols, gain); the gain is ignored."""
    return lambda rows, cols, _: uniform(rows, cols, rows, generator, dtype)


def mlp_init(sizes: Sequence[int], generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
    """Initial tensors w0 [I, H], b0 [H], w1, ... of one network with layers of these sizes."""
    tensors = {}
    for i, (fan_in, out) in enumerate(pairwise(sizes)):
        tensors[f"w{i}"] = uniform(fan_in, out, fan_in, generator, dtype)
        tensors[f"b{i}"] = uniform(1, out, fan_in, generator, dtype)[0]
    return tensors


def mlp(params: Params, x: Tensor, layers: int) -> Tensor:
    """MLP of `layers` layers with ReLUs in between: x [R, B, I] -> [R, B, O]."""
    tensors = [params[f"{kind}{i}"] for i in range(layers) for kind in "wb"]
    out: Tensor = _Mlp.apply(x, *tensors)  # type: ignore[no-untyped-call]
    return out


class _Mlp(torch.autograd.Function):
    """A whole MLP as one autograd operation with a hand-written backward pass.

    On a CPU the autograd overhead of small layers exceeds their matrix products: one SAC update of two 64x64 critics
    takes a third of the time it takes layer by layer. Gradients that are not needed (of fixed weights, of data) are
    not computed.
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
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient of the output [R, B, O] -> gradients of x, w0, b0, w1, ...; None where not needed."""
        (gradient,) = grad_outputs
        tensors = ctx.saved_tensors
        layers = ctx.layers
        inputs = tensors[:layers]
        weights = tensors[layers:]
        needs_grad = ctx.needs_input_grad
        out: list[Tensor | None] = [None] * (1 + 2 * layers)
        for i in range(layers - 1, -1, -1):
            if needs_grad[1 + 2 * i]:
                out[1 + 2 * i] = torch.bmm(inputs[i].transpose(1, 2), gradient)
                out[2 + 2 * i] = gradient.sum(1)
            if i or needs_grad[0]:
                gradient = torch.bmm(gradient, weights[i].transpose(1, 2))
                if i:
                    # A ReLU passes no gradient where its output was 0.
                    gradient = torch.ops.aten.threshold_backward(gradient, inputs[i], 0)
        if needs_grad[0]:
            out[0] = gradient
        return tuple(out)
