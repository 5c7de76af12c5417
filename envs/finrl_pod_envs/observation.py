"""State of a batch of market accounts, their flat observations, and what native kernels read of an environment.

Flat observations, one row per account, are for libraries that do not use the shared market table.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from finrl_pod.market.account_extras import AccountExtras
from finrl_pod.market.mandate import MandateTable
from finrl_pod.market.rewards import StepReward
from finrl_pod.market.venue import Venue
from finrl_pod.native.library import load
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import MarketTensor, Observation, Tensor


class EnvState(NamedTuple):
    """State of P members x G groups x A accounts on a market of N assets.

    bar: [P, G] int64, the decision bar. steps_left: [P, G] int64, to the end of the window. episode_index: [P, G]
    int64, episodes started so far, the index of the next start window. cash: [P, G, A] and shares: [P, G, A, N], in the
    dtype of the environment. reward_state: [2, P, G, A, S], numbers of the reward, as of the last fill and as known at
    the close, or None. pending: [P, G, A, delay - 1, action_size], actions not yet in effect, oldest first, NaN where
    there is none; None without a delay; target weights under a mandate. virtual: [P, G, A, N], virtual holdings of a
    mandate as weights, or None. budget: [P, G, A], what is left of its turnover budget, or None.
    """

    bar: Tensor
    steps_left: Tensor
    episode_index: Tensor
    cash: Tensor
    shares: Tensor
    reward_state: Tensor | None
    pending: Tensor | None = None
    virtual: Tensor | None = None
    budget: Tensor | None = None


class KernelEnv(Protocol):
    """Attributes of a `MarketEnv` that native kernels read.

    members, envs, groups, accounts, assets: P, E = G * A, G, A and N. dtype: dtype of accounts, `close` and `fill`
    [T, N]; output_dtype: dtype of step outputs. turbulent: [T] bool, bars at which everything is sold, or None.
    """

    market: MarketTensor
    config: EnvironmentConfig
    venue: Venue
    device: torch.device
    dtype: torch.dtype
    output_dtype: torch.dtype
    members: int
    envs: int
    groups: int
    accounts: int
    assets: int
    episode_bars: int
    first: int
    last: int
    close: Tensor
    fill: Tensor
    turbulent: Tensor | None
    mandate: MandateConfig | None
    mandate_table: MandateTable | None
    extras: AccountExtras
    reward: StepReward


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
