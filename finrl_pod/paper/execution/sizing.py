"""Order sizing rules of a paper config; the daemon, its reports and backtests share.

Apart from the planning of orders, so that status reports need no numerical libraries.
"""

from __future__ import annotations

from decimal import Decimal

from finrl_pod.market.orders import OrderLimits, SizingRules
from finrl_pod.paper.settings import PaperConfig, RiskSettings


def sizing_rules(config: PaperConfig, limits: RiskSettings | None = None) -> SizingRules:
    """Return the sizing rules of a config, as exact decimals. limits: result of `risk_limits`; None to cut nothing."""
    orders = config.orders
    return SizingRules(
        cash_buffer=Decimal(str(orders.cash_buffer)),
        fractional=orders.fractional,
        min_value=Decimal(str(orders.min_value)),
        cost_rate=Decimal(str(config.broker.cost_bps)) / 10_000,
        collar=Decimal(str(orders.collar)),
        limits=None if limits is None else order_limits(limits),
        target_sessions=orders.target_sessions,
    )


def order_limits(limits: RiskSettings) -> OrderLimits:
    """Return the limits that weights and purchases are cut to."""
    return OrderLimits(
        max_position=Decimal(str(limits.max_position)),
        max_gross=Decimal(str(min(limits.max_gross, limits.max_net))),
        max_order=Decimal(str(limits.max_order)),
        max_turnover=Decimal(str(limits.max_turnover)),
    )
