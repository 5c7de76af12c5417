"""Backtests as the paper-trading daemon trades: its order sizes, costs and limits."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from finrl_pod.errors import ConfigError
from finrl_pod.evaluate.paper_backtest import Auction, backtest_paper
from finrl_pod.market.mandate import active_mandate
from finrl_pod.market.orders import SizingRules, limited_weights
from finrl_pod.paper.domain.schedule import order_hours
from finrl_pod.paper.execution.mandate_limits import UNBOUNDED, risk_limits
from finrl_pod.paper.execution.sizing import order_limits, sizing_rules
from finrl_pod.paper.settings import DataSettings, PaperConfig, RiskSettings, require_daily_decisions
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import EnvironmentConfig, RunConfig
from finrl_pod.types import BacktestResult, Floats, MarketTensor, Panel, Positions, Window

# Settings without a counterpart in a paper account: they must keep their defaults.
UNSUPPORTED_SETTINGS = (
    *("delay", "short", "leverage", "fill", "whole_shares", "buy_allocation", "participation", "borrow_fee"),
    *("cash_rates", "per_share", "per_share_minimum", "half_spread", "half_spread_bps", "impact", "delisting_return"),
    *("tax_short", "tax_long", "cost_model"),
)


@dataclass(frozen=True)
class PaperRules:
    """Order sizing rules, starting cash in currency, and the auction in which orders fill.

    hours: fractions of a bar between which orders may fill instead, in a market that never closes.
    """

    rules: SizingRules
    cash: float
    auction: Auction
    hours: tuple[float, float] | None = None

    def backtest(
        self, strategy: Strategy, panel: Panel, market: MarketTensor, first: int, last: int
    ) -> tuple[BacktestResult, int]:
        """Return the result over bars first..last and the number of orders."""
        terms = (self.rules, self.cash, self.auction)
        paper_backtest = backtest_paper(strategy, panel, market, first, last, *terms, hours=self.hours)
        return paper_backtest.result, len(paper_backtest.orders)

    def description(self) -> list[str]:
        rules = self.rules
        shares = "fractional shares" if rules.fractional else "whole shares"
        sentences = [
            f"Accounts start with {self.cash:,.0f} in cash; amounts are in the currency of the prices.",
            f"Orders are sized at the closing prices of the decision, as in the paper-trading daemon "
            f"(execution = paper): {shares}, with {float(100 * rules.cash_buffer):g}% of equity kept in cash.",
            f"Orders fill in the next session's {'opening' if self.auction == 'open' else 'closing'} auction."
            if self.hours is None
            else "Orders fill on a straight line from the next open to the next close.",
            f"Every trade costs {float(10_000 * rules.cost_rate):g} basis points of its value.",
            "Positions in a delisted ticker stay in the account at the last close.",
        ]
        if rules.limits is not None:
            sentences.append(
                f"Target weights are cut to {float(100 * rules.limits.max_position):g}% of equity (what is cut is "
                f"spread over the others), purchases to {float(100 * rules.limits.max_order):g}%."
            )
        if rules.collar:
            sentences.append(
                f"Limit prices are {float(100 * rules.collar):g}% from the prices of the decision; an order does not "
                "fill if the auction price is beyond its limit."
            )
        return sentences


def rules_of_config(
    config: PaperConfig, strategy: Strategy, cost_bps: float | None = None, cash: float | None = None
) -> PaperRules:
    """Return the rules of a daemon that trades a strategy, optionally with another cost or starting cash.

    Raises ConfigError if the daemon would refuse the strategy.
    """
    require_daily_decisions(config, "execution = paper")
    rules = sizing_rules(config, risk_limits(config, strategy))
    if cost_bps is not None:
        rules = dataclasses.replace(rules, cost_rate=_rate(cost_bps))
    return PaperRules(rules, config.capital if cash is None else cash, config.schedule.mode, order_hours(config))


def rules_of_environment(environment: EnvironmentConfig, panel: Panel, strategy: Strategy) -> PaperRules:
    """Return the rules of a daemon with default settings, but the proportional cost and cash of the environment.

    Raises ConfigError if the environment has a setting that orders in an auction do not support.
    """
    defaults = EnvironmentConfig()
    for name in UNSUPPORTED_SETTINGS:
        if getattr(environment, name) != getattr(defaults, name):
            raise ConfigError(
                f"execution = paper does not support environment.{name} = {getattr(environment, name)!r}; it must be "
                f"{getattr(defaults, name)!r}"
            )
    daemon = PaperConfig(symbols=panel.symbols, capital=environment.cash, data=DataSettings(window=0))
    rules = sizing_rules(daemon, risk_limits(daemon, strategy))
    rules = dataclasses.replace(rules, cost_rate=_rate(environment.cost_bps))
    return PaperRules(rules, environment.cash, "close" if panel.open is None else "open")


def _rate(cost_bps: float) -> Decimal:
    return Decimal(str(cost_bps)) / 10_000


class LimitedStrategy:
    """Wrap a strategy and cut its target weights as the daemon does (`limited_weights`)."""

    def __init__(self, inner: Strategy, rules: SizingRules) -> None:
        self.inner = inner
        self.name = inner.name
        self.feature_names = inner.feature_names
        self.lookback: int | None = getattr(inner, "lookback", None)
        self.feature_lookback: int = getattr(inner, "feature_lookback", 1)
        self._rules = rules

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        weights = self.inner.target_weights(window, positions)
        if weights is None:
            return None
        return np.array(limited_weights([float(weight) for weight in weights], self._rules))


def within_daemon_limits(strategy: Strategy, config: RunConfig) -> Strategy:
    """Return a champion within the default limits of the daemon, so that the gate tests what the daemon would trade.

    Under a mandate the limits follow from it and cut nothing; short or leveraged accounts cannot be traded on paper.
    The strategy is returned as it is in both cases.
    """
    if not _are_weights_cut(config):
        return strategy
    limits = order_limits(RiskSettings(**UNBOUNDED))
    return LimitedStrategy(strategy, SizingRules(cash_buffer=Decimal(0), limits=limits))


def daemon_limits_sentences(config: RunConfig) -> list[str]:
    """What `within_daemon_limits` does to the champion of a run, for its report; empty if nothing."""
    if not _are_weights_cut(config):
        return []
    return [
        f"The champion trades within the default limits of the paper-trading daemon: at most "
        f"{100 * UNBOUNDED['max_position']:g}% of equity in a symbol (what is cut is spread over the others, also "
        f"beyond hmax), purchases of at most {100 * UNBOUNDED['max_order']:g}%. A `finrl-pod backtest` of the run "
        "trades without these limits."
    ]


def _are_weights_cut(config: RunConfig) -> bool:
    environment = config.environment
    return active_mandate(config.mandate) is None and not environment.short and environment.leverage == 1
