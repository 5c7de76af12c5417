"""A champion as the paper-trading daemon would trade it: target weights cut to the default risk limits."""

from __future__ import annotations

from decimal import Decimal

import numpy as np

from finrl_pod.market.mandate import active_mandate
from finrl_pod.market.orders import SizingRules, limited_weights
from finrl_pod.paper.execution.mandate_limits import UNBOUNDED
from finrl_pod.paper.execution.sizing import order_limits
from finrl_pod.paper.settings import RiskSettings
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import RunConfig
from finrl_pod.types import Floats, Positions, Window


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
        """Target weights of the wrapped strategy within the limits."""
        weights = self.inner.target_weights(window, positions)
        if weights is None:
            return None
        return np.array(limited_weights([float(weight) for weight in weights], self._rules))


def within_daemon_limits(strategy: Strategy, config: RunConfig) -> Strategy:
    """Return a champion within the default limits of the daemon, so that the gate tests what the daemon would trade.

    Under a mandate the limits follow from it and cut nothing; short or leveraged accounts cannot be traded on paper.
    The strategy is returned as it is in both cases.
    """
    environment = config.environment
    if active_mandate(config.mandate) is not None or environment.short or environment.leverage != 1:
        return strategy
    risk = RiskSettings(
        max_position=UNBOUNDED["max_position"],
        max_order=UNBOUNDED["max_order"],
        max_turnover=UNBOUNDED["max_turnover"],
    )
    limits = order_limits(risk)
    return LimitedStrategy(strategy, SizingRules(cash_buffer=Decimal(0), limits=limits))
