"""Costs at a size equal the square-root law; sizes at a share of growth, intervals, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from finrl_pod.data.panel import make_panel
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import DataError, InputError
from finrl_pod.evaluate.capacity import SIZES, CapacityCurve, capacity_curve, size_at
from finrl_pod.evaluate.metrics import bars_per_year
from finrl_pod.evaluate.variations import RecordingStrategy, backtest_recorded
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.types import Floats, Panel, Positions, Window

BARS = 400
ADV = 1e7
RULES = ExecutionRules(cost_rate=0.0)


class Weights:
    """Constant weights, or those of the better asset every 20 bars, which it knows."""

    feature_names, lookback = (), 1

    def __init__(self, name: str, table: Floats) -> None:
        self.name, self._table, self._bar = name, table, -1

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        self._bar += 1
        return self._table[self._bar] if self._bar % 20 == 0 else None


def panel(volume: bool) -> Panel:
    rng = np.random.default_rng(0)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, (BARS, 2)), 0))
    times = np.datetime64("2000-01-03", "ns") + np.arange(BARS) * np.timedelta64(1, "D")
    columns = {"close": close} | ({"volume": ADV / close} if volume else {})
    return make_panel(times, ("A", "B"), columns, name="two")


def curve(volume: bool = True, sizes: tuple[float, ...] = SIZES, adv: float | None = None) -> CapacityCurve:
    prices = panel(volume)
    market = build_market(prices, (), (0, BARS - 1))
    ahead = np.roll(np.log(prices.close), -21, 0) - np.roll(np.log(prices.close), -1, 0)
    best = np.eye(2)[ahead.argmax(1)]
    both: list[RecordingStrategy] = []
    for name, table in (("best", best), ("base", np.full((BARS, 2), 0.5))):
        both.append(backtest_recorded(Weights(name, table), prices, MarketPeriod(market, 0, BARS - 2, RULES, 1e5))[1])
    return capacity_curve(*both, MarketPeriod(market, 0, BARS - 2, RULES, 100_000.0), sizes=sizes, adv=adv)  # type: ignore[misc]


@pytest.mark.slow
def test_costs_grow_with_the_root_of_the_size_and_growth_falls() -> None:
    found = curve(sizes=(1e3, 4e3, 1.6e4))
    np.testing.assert_allclose(found.cost[1:] / found.cost[:-1], 2, rtol=0.02)
    assert (np.diff(found.growth) < 0).all()
    assert (found.low < found.growth).all()
    assert (found.growth < found.high).all()


def test_the_first_purchase_costs_the_square_root_law() -> None:
    """All in one asset: 10,000 of an ADV of 10 million costs Y sigma sqrt(0.001) of its value; sigma as known then."""
    prices = panel(True)
    market = build_market(prices, (), (0, BARS - 1))
    table = np.tile([1.0, 0.0], (BARS, 1))
    recorded = [
        backtest_recorded(Weights(name, weights), prices, MarketPeriod(market, 40, 69, RULES, 1e5))[1]
        for name, weights in (("one", table), ("nothing", np.zeros((BARS, 2))))
    ]
    found = capacity_curve(*recorded, MarketPeriod(market, 40, 69, RULES, 100_000.0), sizes=(1e4,))
    sigma = np.diff(np.log(prices.close[19:41, 0])).std(ddof=1)
    paid = found.cost[0] * 29 / bars_per_year(market.times) * 1e4  # of an equity that starts at 10,000
    assert paid == pytest.approx(1e4 * sigma * np.sqrt(1e4 / ADV), rel=0.01)


@pytest.mark.slow
def test_a_given_volume_replaces_that_of_the_data() -> None:
    with_data = curve(True)
    given = curve(False, adv=ADV)
    np.testing.assert_allclose(given.growth, with_data.growth, rtol=0.1)
    assert 0 < with_data.half.value < with_data.zero.value
    assert with_data.half.low <= with_data.half.value <= with_data.half.high


def test_sizes_at_a_share_of_the_first_growth() -> None:
    sizes = (1e3, 1e4, 1e5)
    assert size_at(sizes, np.array([0.04, 0.03, 0.01]), 0.5) == pytest.approx(10**4.5)
    assert size_at(sizes, np.array([0.04, 0.03, 0.01]), 0.0) == np.inf
    assert size_at(sizes, np.array([0.02, 0.00, -0.01]), 0.0) == pytest.approx(1e4)
    assert size_at(sizes, np.array([-0.02, 0.05, 0.01]), 0.5) == 0


def test_prices_without_volumes_and_senseless_ones_are_refused() -> None:
    with pytest.raises(DataError, match="--adv 1e8"):
        curve(False)
    with pytest.raises(InputError, match="adv must be above 0"):
        curve(False, adv=-1.0)
