"""Flat observations, one row per account, for libraries that do not use the shared market table."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from finrl_pod.native.library import load
from finrl_pod.types import MarketTensor, Observation, Tensor


def flat_size(market: MarketTensor, extras: int = 0) -> int:
    """Numbers of a flat observation, 1 + N + X + N * F: cash, holdings, extras, then the features asset by asset."""
    _, n, f = market.shape
    return 1 + n + extras + n * f


def flat(market: MarketTensor, observation: Observation, out: Tensor | None = None) -> Tensor:
    """Flat observations [P, E, 1 + N + X + N * F]: the account, then the features of the decision bar, asset by asset.

    out: a tensor of that shape to write into, in its dtype; without it a new float32 tensor is returned.
    """
    bar, account = observation
    p, g = bar.shape
    _, e, account_size = account.shape
    if out is None:
        out = torch.empty(p, e, account_size + market.features[0].numel(), device=account.device)
    if not _write_natively(market.features, bar, account, out):
        out[..., :account_size] = account
        out.view(p, g, e // g, -1)[..., account_size:] = market.features[bar].flatten(2).unsqueeze(2)
    return out


def _write_natively(table: Tensor, bar: Tensor, account: Tensor, out: Tensor) -> bool:
    """Write with the kernel `observation.cpp`; False if it cannot be used on these tensors or there is no compiler."""
    numbers = (table, account, out)
    fits = all(x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous() for x in numbers)
    if not fits or account.requires_grad or torch.compiler.is_compiling():
        return False
    library = load(Path(__file__).with_name("observation.cpp"))
    if library is None:
        return False
    bar = bar.contiguous()
    (width, account_size) = (table[0].numel(), account.shape[-1])
    groups = bar.numel()
    accounts = account.shape[1] // bar.shape[1]
    pointer = ctypes.c_void_p
    size = ctypes.c_int64
    library.flat_rows(
        *(pointer(table.data_ptr()), size(width), pointer(bar.data_ptr()), size(groups), size(accounts)),
        *(pointer(account.data_ptr()), size(account_size), pointer(out.data_ptr())),
    )
    return True
