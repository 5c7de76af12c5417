"""Encoder of assets, shared by policies, actors, critics and Q-networks.

    code_n  = tanh(.. tanh(x_n W + b) ..)                    x_n: the features of asset n
    context = mean of code_n over the tradable assets
    mixed_n = code_n V + context U + c                       codes of assets that depend on the whole market

The same weights serve every asset, so the number and the order of the assets do not matter. The last hidden size is
the size of the mixed codes, all sizes before it are layers of the code; a single size serves both.

Shapes: R networks (members times the networks that each has), K groups of A accounts, N assets of F features,
H units of the code, S units of the mixed code.

An account is [cash, holdings N, blocks B x N, numbers X] (`market.account_extras`): B extra numbers for each asset,
such as pending target weights, and X of the whole account, such as a drawdown. Blocks are in units of 1/N.
Networks that do not depend on the number of assets add to the hidden units of asset n

    sum over b of block_bn e_b + sum over x of number_x g_x
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch

from finrl_pod.rl.native.kernels import tanh_of_sum
from finrl_pod.rl.networks.layers import Params, affine, product
from finrl_pod.types import Tensor

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


# ---------------------------------------------------------------------- extras of an account

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
