"""The return after tax against accounts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from finrl_pod.data.tensor import build_market
from finrl_pod.errors import ConfigError
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.market.rules import rules_of
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import Floats, Panel, Positions, Window

TAXES = ExecutionRules(cost_rate=0.0, tax_short=0.4, tax_long=0.2)


class Dated:
    """Trades once a month at most: plan has pairs of a month and the weights that are set at its first bar."""

    name, feature_names, lookback = "dated", (), 1

    def __init__(self, *plan: tuple[str, list[float]]) -> None:
        self.plan = plan
        self.done = 0

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        due = [weights for month, weights in self.plan if str(window.times[-1])[:7] >= month]
        is_new = len(due) > self.done
        self.done = len(due)
        return np.array(due[-1]) if is_new else None


def after_tax(prices: dict[str, tuple[float, float]], strategy: Dated, rules: ExecutionRules = TAXES) -> float:
    """prices: by the month from which they hold."""
    times = np.arange("2020-01-01", "2023-01-01", 5, dtype="datetime64[D]").astype("datetime64[ns]")
    close = np.array([[x for month, x in prices.items() if str(t)[:7] >= month][-1] for t in times])
    panel = Panel(times, ("A", "B"), close, np.isfinite(close))
    market = build_market(panel, (), (0, len(times) - 1))
    return backtest(strategy, panel, MarketPeriod(market, 0, len(times) - 1, rules, 1000.0)).metrics["after_tax_return"]


CASH = [0.0, 0.0]
RISE = {"2020-01": (100.0, 100.0), "2020-06": (110.0, 100.0), "2021-07": (132.0, 100.0)}


def test_gains_are_taxed_when_realised_by_the_time_held() -> None:
    assert after_tax(RISE, Dated(("2020-01", [1, 0]), ("2020-09", CASH))) == pytest.approx(1.1 - 0.4 * 0.1 - 1)
    assert after_tax(RISE, Dated(("2020-01", [1, 0]), ("2021-09", CASH))) == pytest.approx(0.32 * 0.8)
    assert after_tax(RISE, Dated(("2020-01", [1, 0]))) == pytest.approx(0.32)  # not realised
    # The tax of 2020 is not there to earn the 20% of 2021.
    twice = Dated(("2020-01", [1, 0]), ("2020-09", CASH), ("2020-10", [1, 0]), ("2021-12", CASH))
    assert after_tax(RISE, twice) == pytest.approx(1.06 * (1.2 - 0.2 * 0.2) - 1)


def test_losses_offset_gains_of_the_year_and_of_later_years() -> None:
    prices = {"2020-01": (100.0, 100.0), "2020-06": (110.0, 100.0), "2020-08": (110.0, 90.0), "2021-06": (121.0, 90.0)}
    same_year = Dated(("2020-01", [0.5, 0.5]), ("2020-09", CASH))
    assert after_tax(prices, same_year) == pytest.approx(0.0, abs=1e-9)  # 50 gained, 50 lost
    carried = Dated(("2020-01", [0, 1]), ("2020-09", CASH), ("2021-01", [1, 0]), ("2021-09", CASH))
    assert after_tax(prices, carried) == pytest.approx(0.9 * 1.1 - 1)  # a gain of 90 after a loss of 100
    # The shares of 2020 are long term, those of 2021 not.
    mixed = Dated(("2020-01", [0.5, 0]), ("2021-03", [1.0, 0]), ("2021-09", CASH))
    tax = 0.2 * 5 * 21 + 0.4 * 500 / 110 * 11
    assert after_tax(prices, mixed) == pytest.approx((5 + 500 / 110) * 121 / 1000 - tax / 1000 - 1)


def test_rates_are_shares_and_shorts_are_refused() -> None:
    assert rules_of(EnvironmentConfig(tax_short=0.4)).tax_short == 0.4
    with pytest.raises(ConfigError, match=r"environment.tax_long"):
        rules_of(EnvironmentConfig(tax_long=20.0))
    with pytest.raises(ConfigError, match="tax long holdings"):
        rules_of(EnvironmentConfig(short=True, tax_long=0.2))
