"""Validation of environment settings."""

from __future__ import annotations

from finrl_pod.errors import ConfigError
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import MarketTensor


def check(config: EnvironmentConfig, market: MarketTensor) -> None:
    """Raises ConfigError for a setting out of its range, or one that does not fit the market."""
    check_settings("environment.", config)
    if (config.fill == "same_close") != (market.fill_rule == "same_close"):
        raise ConfigError(
            f"environment.fill is {config.fill!r} but the market was built for fills at {market.fill_rule!r}; "
            "build the market with the same rule"
        )
    if config.delay > 1 and config.kind != "portfolio":
        raise ConfigError(
            f'environment.delay above 1 needs environment.kind = "portfolio", got {config.kind!r}: a backtest delays '
            "target weights, not numbers of shares; set delay = 1"
        )
    if config.turbulence_limit > 0 and market.turbulence is None:
        raise ConfigError("environment.turbulence_limit needs a market with turbulence; set it to 0 or add the feature")
