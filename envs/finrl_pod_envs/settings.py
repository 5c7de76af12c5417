"""What a market environment asks of its settings."""

from __future__ import annotations

from finrl_pod.errors import ConfigError
from finrl_pod.settings.constraints import ABOVE_AND_FINITE, Range, above_to, at_least, check_ranges
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import MarketTensor

RANGES = {
    "window": at_least(1),
    "hmax": ABOVE_AND_FINITE,
    "trade_fraction": above_to(0, 1),
    "turbulence_limit": Range("0 or more", lambda x: x >= 0),
    "envs": at_least(1),
    "group": at_least(1),
}


def check(config: EnvironmentConfig, market: MarketTensor) -> None:
    """Raises ConfigError for a setting out of its range, or one that the market was not built for."""
    check_ranges("environment", config, RANGES)
    if (config.fill == "same_close") != (market.fill_rule == "same_close"):
        raise ConfigError(
            f"environment.fill is {config.fill!r} but the market was built to fill at {market.fill_rule!r}; "
            "build the market with the same rule"
        )
    if config.delay > 1 and config.kind != "portfolio":
        raise ConfigError(
            f'environment.delay above 1 needs environment.kind = "portfolio", got {config.kind!r}: a backtest delays '
            "target weights, not numbers of shares; set delay = 1"
        )
    if config.turbulence_limit > 0 and market.turbulence is None:
        raise ConfigError("environment.turbulence_limit needs a market with turbulence; set it to 0 or add the feature")
