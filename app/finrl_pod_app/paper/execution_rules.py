"""The terms of a backtest with execution="paper": orders as the daemon would size and send them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from decimal import Decimal

from finrl_pod.errors import ConfigError
from finrl_pod.evaluate.paper_backtest import Auction, backtest_paper
from finrl_pod.market.orders import SizingRules
from finrl_pod.paper.execution.planning import sizing_rules
from finrl_pod.paper.settings import OrderSettings, PaperConfig
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import BacktestResult, MarketTensor, Panel

# What a paper account has no counterpart for may stand at its default only.
NOT_OF_ORDERS = (
    *(
        "delay",
        "short",
        "leverage",
        "fill",
        "whole_shares",
        "buy_allocation",
        "participation",
        "borrow_fee",
        "cash_rates",
    ),
    *("per_share", "per_share_minimum", "half_spread_bps", "impact", "delisting_return"),
)


@dataclass(frozen=True)
class PaperTerms:
    """rules: how orders are sized. cash: at the start. auction: in which orders fill."""

    rules: SizingRules
    cash: float
    auction: Auction

    def backtest(
        self, strategy: Strategy, panel: Panel, market: MarketTensor, first: int, last: int
    ) -> tuple[BacktestResult, int]:
        """The result over bars first..last, and how many orders were sent."""
        tested = backtest_paper(strategy, panel, market, first, last, self.rules, self.cash, self.auction)
        return tested.result, len(tested.orders)

    def sentences(self) -> list[str]:
        """The terms in words, for a report."""
        rules = self.rules
        shares = "in fractions" if rules.fractional else "whole"
        found = [
            f"Orders are sized at the decision's closing prices, as the paper-trading daemon does (execution = paper): "
            f"shares are bought {shares}, {float(100 * rules.cash_buffer):g}% of the equity stay in cash.",
            f"Orders fill in the next session's {'opening' if self.auction == 'open' else 'closing'} auction.",
            f"Every trade costs {float(10_000 * rules.cost_rate):g} basis points of its value.",
            "What is held of a ticker that ends stays in the account at its last close.",
        ]
        if rules.collar:
            found.append(
                f"Limit prices stand {float(100 * rules.collar):g}% from the decision's prices; an order whose limit "
                "the auction passes does not fill."
            )
        return found


def of_config(config: PaperConfig, cost_bps: float | None = None, cash: float | None = None) -> PaperTerms:
    """Those of a daemon's config; cost and cash may be others."""
    rules = sizing_rules(config)
    if cost_bps is not None:
        rules = dataclasses.replace(rules, cost_rate=_rate(cost_bps))
    return PaperTerms(rules, config.capital if cash is None else cash, config.schedule.mode)


def of_environment(environment: EnvironmentConfig, panel: Panel) -> PaperTerms:
    """Those of a daemon that is told nothing else, with the environment's proportional cost and cash.

    Raises ConfigError where the environment asks for what no order can do.
    """
    usual = EnvironmentConfig()
    for name in NOT_OF_ORDERS:
        if getattr(environment, name) != getattr(usual, name):
            raise ConfigError(
                f"execution = paper sends orders to an auction and knows no environment.{name}: leave it at "
                f"{getattr(usual, name)!r}, got {getattr(environment, name)!r}"
            )
    orders = OrderSettings()
    rules = SizingRules(
        cash_buffer=Decimal(str(orders.cash_buffer)),
        fractional=orders.fractional,
        min_value=Decimal(str(orders.min_value)),
        cost_rate=_rate(environment.cost_bps),
        collar=Decimal(str(orders.collar)),
    )
    return PaperTerms(rules, environment.cash, "close" if panel.open is None else "open")


def _rate(cost_bps: float) -> Decimal:
    return Decimal(str(cost_bps)) / 10_000
