"""The prices of a config, and whether its rules may be applied to them."""

from __future__ import annotations

from finrl_pod.config import EnvironmentConfig, RunConfig
from finrl_pod.data.panel import select
from finrl_pod.data.store import Store
from finrl_pod.errors import ConfigError
from finrl_pod.types import Panel


def load_panel(config: RunConfig) -> Panel:
    """The config's panel, with its choice of symbols. Raises ConfigError for rules that its prices do not allow
    unasked: whole shares and costs a share on adjusted prices."""
    panel = select(Store().load(config.data.name), config.data.symbols)
    check_prices(config.environment, panel)
    return panel


def check_prices(rules: EnvironmentConfig, panel: Panel) -> None:
    """Raises ConfigError where the rules count shares on adjusted prices and the config does not ask for that."""
    if panel.adjusted and not rules.adjusted_shares and (rules.whole_shares or rules.per_share):
        name = "whole_shares" if rules.whole_shares else "per_share"
        raise ConfigError(
            f"environment.{name} counts shares, but the prices of {panel.name!r} are adjusted, so that past counts are "
            "not those that were traded; set environment.adjusted_shares = true to count them all the same"
        )
