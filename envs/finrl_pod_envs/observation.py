"""The flat observation: what libraries that know nothing of the shared table are handed, one long row an account."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from finrl_pod.native.library import load
from finrl_pod.types import MarketTensor, Observation, Tensor


def flat_size(market: MarketTensor) -> int:
    """1 + N + N * F: cash, holdings, then the features of the first asset, of the second, ..."""
    _, n, f = market.shape
    return 1 + n + n * f


def flat(market: MarketTensor, observation: Observation, out: Tensor | None = None) -> Tensor:
    """[P, E, 1 + N + N * F] float32: account, then the decision bar's row of the features, asset by asset.

    out: a tensor of that shape to write into, for a caller who has no need of the one before.
    """
    day, account = observation
    p, g = day.shape
    _, e, own = account.shape
    if out is None:
        out = torch.empty(p, e, flat_size(market), device=account.device)
    if not _written_natively(market.features, day, account, out):
        out[..., :own] = account
        out.view(p, g, e // g, -1)[..., own:] = market.features[day].flatten(2).unsqueeze(2)
    return out


def _written_natively(table: Tensor, day: Tensor, account: Tensor, out: Tensor) -> bool:
    """The same through `observation.cpp`, where there is a compiler and the tensors are as it needs them."""
    numbers = (table, account, out)
    fits = all(x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous() for x in numbers)
    if not fits or account.requires_grad or torch.compiler.is_compiling():
        return False
    library = load(Path(__file__).with_name("observation.cpp"))
    if library is None:
        return False
    day, (width, own) = day.contiguous(), (table[0].numel(), account.shape[-1])
    groups, accounts = day.numel(), account.shape[1] // day.shape[1]
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    library.flat_rows(
        *(pointer(table.data_ptr()), size(width), pointer(day.data_ptr()), size(groups), size(accounts)),
        *(pointer(account.data_ptr()), size(own), pointer(out.data_ptr())),
    )
    return True
