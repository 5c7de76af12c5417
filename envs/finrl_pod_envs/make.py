"""From a config to the environment it names."""

from __future__ import annotations

from typing import Any

from finrl_pod.config import EnvironmentConfig
from finrl_pod.errors import ConfigError
from finrl_pod.types import MarketTensor
from finrl_pod_envs.discrete_trading import DiscreteTradingEnv
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.portfolio import PortfolioEnv
from finrl_pod_envs.stock_trading import StockTradingEnv

KINDS: dict[str, type[PortfolioEnv] | type[StockTradingEnv] | type[DiscreteTradingEnv]] = {
    "portfolio": PortfolioEnv,
    "stock_trading": StockTradingEnv,
    "discrete": DiscreteTradingEnv,
}


def make_env(market: MarketTensor, config: EnvironmentConfig, **kwargs: Any) -> MarketEnv:
    """The environment of `config.kind`; `kwargs` as for MarketEnv. Raises ConfigError for another kind."""
    if config.kind not in KINDS:
        raise ConfigError(f"environment.kind must be one of {', '.join(KINDS)}, got {config.kind!r}")
    return KINDS[config.kind](market, config, **kwargs)
