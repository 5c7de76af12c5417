"""From a config to the rules by which orders fill."""

from __future__ import annotations

from finrl_pod.config import EnvironmentConfig
from finrl_pod.market.execution import ExecutionRules


def rules_of(config: EnvironmentConfig) -> ExecutionRules:
    """How orders fill in the environments of `config` and in a backtest of agents trained in them."""
    return ExecutionRules(
        cost_rate=config.cost_bps / 1e4,
        whole_shares=config.whole_shares,
        short=config.short,
        order=config.order,
        borrow=max(config.leverage - 1.0, 0.0),
    )
