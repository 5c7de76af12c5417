"""State of a batch of market accounts, and the attributes of an environment that the native kernels read."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from finrl_pod.market.account_extras import AccountExtras
from finrl_pod.market.mandate import MandateTable
from finrl_pod.market.rewards import StepReward
from finrl_pod.market.venue import Venue
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import MarketTensor, Tensor


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
