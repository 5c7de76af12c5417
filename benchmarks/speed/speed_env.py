"""Shared by the speed benchmarks: settings and the simulated market."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import make_env

from benchmarks.harness.options import check_minimum
from benchmarks.harness.simulated_markets import random_walks
from finrl_pod.data.tensor import to_device
from finrl_pod.errors import ConfigError
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import MarketTensor, Normaliser

CASH = 1e6
HMAX = 100.0
COST_BPS = 10.0


@dataclass(frozen=True)
class SpeedSettings:
    """Settings of `env`, `ppo`, `population` and `analytic`.

    minibatch: number of samples. kind: "stock_trading" trades shares as FinRL does, "portfolio" sets target weights.
    mandate: its base portfolio, "none" for unconstrained weights. order: allocation of cash to buys. group:
    environments that share a window of days. members: agents; `envs` and `minibatch` are totals, split evenly among
    them. runs: repetitions; the median is reported. matmul_precision, activation_dtype: settings of `[agent]` for GPUs.
    """

    envs: int = 1024
    assets: int = 30
    features: int = 8
    days: int = 2500
    horizon: int = 16
    minibatch: int = 4096
    epochs: int = 4
    hidden: tuple[int, ...] = (64, 64)
    policy: Literal["mlp", "equivariant"] = "mlp"
    kind: Literal["stock_trading", "portfolio"] = "stock_trading"
    mandate: Literal["none", "equal_weight"] = "none"
    order: Literal["proportional", "sequential"] = "proportional"
    observation: Literal["flat", "table"] = "table"
    group: int = 32
    members: int = 1
    runs: int = 5
    matmul_precision: Literal["float32", "tf32"] = "float32"
    activation_dtype: Literal["float32", "bfloat16"] = "float32"

    def check(self) -> None:
        """Raise ConfigError for a setting out of range."""
        names = ("envs", "assets", "horizon", "minibatch", "epochs", "group", "members", "runs")
        check_minimum(self, **dict.fromkeys(names, 1))
        if self.features < 0 or self.days < 3:
            raise ConfigError(
                f"--features must be at least 0 and --days at least 3, got {self.features} and {self.days}"
            )
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError(f"--hidden must be widths of 1 or more, such as 64,64; got {self.hidden}")
        if self.envs % self.members:
            raise ConfigError(f"--members must divide --envs {self.envs}, got {self.members}")

    @property
    def envs_each(self) -> int:
        return self.envs // self.members

    @property
    def group_each(self) -> int:
        """Environments per member that share a window."""
        return min(self.group, self.envs_each)

    @property
    def minibatches(self) -> int:
        """Minibatches per epoch. Raises ConfigError if `minibatch` does not divide the rollout."""
        total = self.envs * self.horizon
        smallest = self.group_each * self.members
        if total % self.minibatch or self.minibatch % smallest:
            raise ConfigError(
                f"--minibatch must divide envs x horizon = {total} and be a multiple of group x members = {smallest}, "
                f"got {self.minibatch}"
            )
        return total // self.minibatch


def make_market(settings: SpeedSettings, fill: Literal["next", "same_close"]) -> MarketTensor:
    """Return a market of random walks with noise features; every bar is tradable."""
    close, table = random_walks(settings.days, settings.assets, settings.features)
    prices = torch.from_numpy(close)
    features = torch.from_numpy(table)
    tradable = torch.ones_like(prices, dtype=torch.bool)
    names = ("price", *(f"noise_{i}" for i in range(settings.features)))
    last_row = prices[-1:].clone()
    return MarketTensor(
        times=np.datetime64("2000-01-01", "ns") + np.arange(settings.days) * np.timedelta64(1, "D"),
        symbols=tuple(f"S{n:02d}" for n in range(settings.assets)),
        close=prices,
        fill=prices if fill == "same_close" else torch.cat([prices[1:], last_row]),
        features=features,
        raw_features=features,
        tradable=tradable,
        fillable=tradable,
        delisted=~tradable,
        feature_names=names,
        normaliser=Normaliser(names, (0.0,) * len(names), (1.0,) * len(names)),
        fill_rule=fill,
        first=0,
        steps=settings.days - (1 if fill == "same_close" else 2),
    )


def make_speed_env(settings: SpeedSettings, device: torch.device) -> MarketEnv:
    """Return the environment; order="sequential" also uses whole shares and fills at the observed close."""
    finrl = settings.order == "sequential"
    fill: Literal["next", "same_close"] = "same_close" if finrl else "next"
    config = EnvironmentConfig(
        kind=settings.kind,
        cost_bps=COST_BPS,
        cash=CASH,
        fill=fill,
        buy_allocation=settings.order,
        whole_shares=finrl,
        hmax=HMAX,
        envs=settings.envs_each,
        group=settings.group_each,
    )
    market = to_device(make_market(settings, fill), device)
    mandate = MandateConfig(base=settings.mandate)
    return make_env(market, config, members=range(settings.members), mandate=mandate)
