"""Inputs of networks from an account's extras: what is observed besides cash and holdings.

An account is [cash, holdings N, blocks B x N, numbers X]: B numbers for each asset, such as pending target weights, and
X of the whole account, such as a drawdown (`market.account_extras`). Blocks are in units of 1/N, as holdings are.
Networks that do not depend on the number of assets add to the hidden units of asset n

    sum over b of block_bn e_b + sum over x of number_x g_x
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from finrl_pod.types import Tensor

INITIAL_SCALE = 0.1


class ExtraSizes(Protocol):
    """Numbers of extras, such as of a `PolicySpec`."""

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
        f"{prefix}{name}": torch.randn(rows, units, dtype=dtype, generator=generator) * INITIAL_SCALE
        for name, rows in shapes.items()
        if rows
    }


def split_extras(sizes: ExtraSizes, account: Tensor, assets: int) -> tuple[Tensor, Tensor]:
    """Blocks [P, K, A, B, N] and numbers [P, K, A, X] of accounts [P, K, A, own]."""
    start = 1 + assets
    stop = start + sizes.extra_per_asset * assets
    blocks = account[..., start:stop].reshape(*account.shape[:-1], sizes.extra_per_asset, assets)
    return blocks, account[..., stop : stop + sizes.extra_per_account]


def extras_by_asset(
    sizes: ExtraSizes, params: Mapping[str, Tensor], account: Tensor, assets: int, prefix: str = ""
) -> Tensor:
    """What the extras add to the hidden units of each asset: [P, K, A, N, S]. Only for networks with extras."""
    blocks, numbers = split_extras(sizes, account, assets)
    terms = []
    if sizes.extra_per_asset:
        terms.append(torch.einsum("pkabn,pbs->pkans", blocks * assets, params[f"{prefix}extra_asset_w"]))
    if sizes.extra_per_account:
        whole = torch.einsum("pkax,pxs->pkas", numbers, params[f"{prefix}extra_w"])
        terms.append(whole.unsqueeze(3).expand(*whole.shape[:3], assets, whole.shape[-1]))
    return sum(terms[1:], terms[0])
