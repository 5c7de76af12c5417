"""Layers of R networks at once: parameters [R, I, O], inputs [R, B, I], one batched matrix product each.

R is members times the networks that each has, such as critics. The asset encoder is shared by policies, actors, critics
and Q-networks:

    code_n  = tanh(.. tanh(x_n W + b) ..)                    x_n: the features of asset n
    context = mean of code_n over the tradable assets
    mixed_n = code_n V + context U + c                       codes of assets that depend on the whole market

The same weights serve every asset, so the number and the order of the assets do not matter. The last hidden size is
the size of the mixed codes, all sizes before it are layers of the code; a single size serves both.

Shapes: K groups of A accounts, N assets of F features, H units of the code, S units of the mixed code.

An account is [cash, holdings N, blocks B x N, numbers X] (`market.account_extras`): B extra numbers for each asset,
such as pending target weights, and X of the whole account, such as a drawdown. Blocks are in units of 1/N. Networks
that do not depend on the number of assets add to the hidden units of asset n: sum over b of block_bn e_b + sum over x
of number_x g_x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch

from finrl_pod.rl.native.kernels import tanh_of_sum
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


InitMatrix = Callable[[int, int, float], Tensor]  # (rows, columns, gain of an orthogonal matrix) -> weights
TANH_GAIN = 5 / 3  # keeps the variance of activations before a tanh


class EncodedAssets(NamedTuple):
    """code: [R, K, N, H]; context: [R, K, H]."""

    code: Tensor
    context: Tensor


class AssetEncoder:
    """Parameters `encode_w`, `encode_b`, `encode_w1`, .. and, for `mix`, `code_w`, `context_w`, `code_b`, all prefixed.

    is_fused: use the native tanh and add the context within the matrix product. Policies do, the other networks compute
    each operation by itself; results differ in the last bits, so that saved agents keep their exact decisions.
    """

    def __init__(self, features: int, hidden: Sequence[int], *, prefix: str = "", is_fused: bool = False) -> None:
        """features: F. hidden: sizes of all hidden layers; code_size: H, mixed_size: S."""
        self.sizes = (features, *(hidden[:-1] or hidden))
        self.code_size = self.sizes[-1]
        self.mixed_size = hidden[-1]
        self.prefix = prefix
        self.is_fused = is_fused

    def init(self, draw: InitMatrix, dtype: torch.dtype) -> Params:
        """Initial parameters of `encode` for one network."""
        tensors = {}
        for (rows, columns), (weight, bias) in zip(pairwise(self.sizes), self._layers(), strict=True):
            tensors[weight] = draw(rows, columns, TANH_GAIN)
            tensors[bias] = torch.zeros(columns, dtype=dtype)
        return tensors

    def _layers(self) -> list[tuple[str, str]]:
        """Names of weights and biases of the layers of the code."""
        numbers = ("", *map(str, range(1, len(self.sizes) - 1)))
        return [(f"{self.prefix}encode_w{i}", f"{self.prefix}encode_b{i}") for i in numbers]

    def init_mix(self, draw: InitMatrix, dtype: torch.dtype) -> dict[str, Tensor]:
        """Initial parameters of `mix` for one network."""
        return {
            f"{self.prefix}code_w": draw(self.code_size, self.mixed_size, 1.0),
            f"{self.prefix}context_w": draw(self.code_size, self.mixed_size, 1.0),
            f"{self.prefix}code_b": torch.zeros(self.mixed_size, dtype=dtype),
        }

    def encode(self, params: Params, features: Tensor, tradable: Tensor | None) -> EncodedAssets:
        """Codes and context of features [R, K, N, F]; tradable: [R, K, N] bool, None if all assets are."""
        code = features
        for weight, bias in ((params[w], params[b]) for w, b in self._layers()):
            if self.is_fused:
                rows = code.reshape(code.shape[0], -1, code.shape[-1])  # [R, K * N, F]
                code = tanh_of_sum(torch.bmm(rows, weight), bias).view(*code.shape[:-1], weight.shape[-1])
            else:
                code = torch.tanh(affine(code, weight, bias))
        return EncodedAssets(code, mean_over_assets(code, tradable))

    def mix(self, params: Params, assets: EncodedAssets) -> Tensor:
        """Codes mixed with the context: [R, K, N, S]."""
        weight = params[f"{self.prefix}code_w"]
        context_w = params[f"{self.prefix}context_w"]
        context_code = affine(assets.context, context_w, params[f"{self.prefix}code_b"])  # [R, K, S]
        if not self.is_fused:
            return product(assets.code, weight) + context_code.unsqueeze(2)
        r, k, n, _ = assets.code.shape
        size = weight.shape[-1]
        return torch.baddbmm(
            context_code.reshape(r, k, 1, size).expand(r, k, n, size).reshape(r, k * n, size),
            assets.code.reshape(r, k * n, -1),
            weight,
        ).view(r, k, n, size)


def weighted_codes(weights: Tensor, code: Tensor) -> Tensor:
    """Sums of codes [R, K, N, H] with weights [R, K, B, N], such as holdings: [R, K, B, H]."""
    r, k, b, n = weights.shape
    return torch.bmm(weights.reshape(r * k, b, n), code.view(r * k, n, -1)).view(r, k, b, -1)


def mean_over_assets(x: Tensor, tradable: Tensor | None) -> Tensor:
    """Mean over N of [R, K, N, H], over the tradable assets only: [R, K, H]."""
    if tradable is None:
        return x.mean(2)
    mask = tradable.unsqueeze(-1).to(x.dtype)
    return (x * mask).sum(2) / mask.sum(2).clamp(min=1)


INITIAL_EXTRA_SCALE = 0.1


class ExtraSizes(Protocol):
    """Sizes of the extras, such as a `PolicySpec`: B numbers for each asset, X for the account."""

    @property
    def extra_per_asset(self) -> int: ...

    @property
    def extra_per_account(self) -> int: ...


def init_extras(
    sizes: ExtraSizes, units: int, generator: torch.Generator, dtype: torch.dtype, prefix: str = ""
) -> dict[str, Tensor]:
    """Weights of the extras for a layer of `units` hidden units; none without extras."""
    shapes = {"extra_asset_w": sizes.extra_per_asset, "extra_w": sizes.extra_per_account}
    return {
        f"{prefix}{name}": torch.randn(rows, units, dtype=dtype, generator=generator) * INITIAL_EXTRA_SCALE
        for name, rows in shapes.items()
        if rows
    }


def split_extras(sizes: ExtraSizes, account: Tensor, assets: int) -> tuple[Tensor, Tensor]:
    """Blocks [P, K, A, B, N] and numbers [P, K, A, X] of accounts [P, K, A, own]."""
    start = 1 + assets
    stop = start + sizes.extra_per_asset * assets
    blocks = account[..., start:stop].reshape(*account.shape[:-1], sizes.extra_per_asset, assets)
    return blocks, account[..., stop : stop + sizes.extra_per_account]


def extras_by_asset(sizes: ExtraSizes, params: Params, account: Tensor, assets: int, prefix: str = "") -> Tensor:
    """What the extras add to the hidden units of each asset: [P, K, A, N, S]. Only for networks with extras."""
    blocks, numbers = split_extras(sizes, account, assets)
    terms = []
    if sizes.extra_per_asset:
        terms.append(torch.einsum("pkabn,pbs->pkans", blocks * assets, params[f"{prefix}extra_asset_w"]))
    if sizes.extra_per_account:
        whole = torch.einsum("pkax,pxs->pkas", numbers, params[f"{prefix}extra_w"])
        terms.append(whole.unsqueeze(3).expand(*whole.shape[:3], assets, whole.shape[-1]))
    return sum(terms[1:], terms[0])
