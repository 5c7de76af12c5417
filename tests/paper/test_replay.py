"""Replaying the daemon and backtesting the same orders give identical equity."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from finrl_pod_strategies.baselines import make_baseline

from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.paper_backtest import backtest_paper
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.paper.execution.sizing import sizing_rules
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.status import orders
from finrl_pod.paper.runtime.replay import replay
from finrl_pod.paper.settings import BrokerSettings, OrderSettings, PaperConfig, ScheduleSettings
from tests.paper.factories import SYMBOLS, FixedSource, RotatingStrategy, config, prices

pytestmark = pytest.mark.slow

FIRST, LAST = date(2024, 1, 8), date(2024, 2, 2)
OPEN, CLOSE = ScheduleSettings("open"), ScheduleSettings("close")


@pytest.mark.parametrize(
    "settings",
    [
        config(schedule=OPEN),
        config(schedule=CLOSE),
        config(schedule=OPEN, orders=OrderSettings(fractional=True, collar=0.2)),
        config(schedule=OPEN, orders=OrderSettings(collar=0.002)),
        config(schedule=CLOSE, orders=OrderSettings(collar=0.0), broker=BrokerSettings(kind="simulated", cost_bps=7)),
    ],
    ids=["open", "close", "fractions", "unfilled limit orders", "market orders with costs"],
)
def test_replay_and_backtest_agree_exactly(tmp_path: Path, settings: PaperConfig) -> None:
    panel = prices()
    journal = tmp_path / "j.sqlite"
    replayed = replay(settings, panel, [FixedSource(RotatingStrategy())], FIRST, LAST, journal)
    market = build_market(panel, (), (0, 10))
    days = [str(day) for day in panel.times.astype("datetime64[D]")]
    terms = (days.index(str(FIRST)), days.index(str(LAST)), sizing_rules(settings), settings.capital)
    tested = backtest_paper(RotatingStrategy(), panel, market, *terms, settings.schedule.mode)
    assert [equity for _, equity in replayed.equity] == list(tested.equity)
    assert [str(day) for day, _ in replayed.equity] == days[terms[0] : terms[1] + 1]
    store = Store.open(journal)
    sent = {(o.bar, o.symbol): o.filled for o in orders(store)}
    store.close()
    expected = {(str(o.bar.astype("datetime64[D]")), o.symbol): abs(o.filled) for o in tested.orders}
    assert sent == expected
    assert len(sent) > 20
    if settings.orders.collar == 0.002:
        assert Decimal(0) in sent.values()


def test_orders_without_rounding_or_buffer_match_the_plain_backtest() -> None:
    """Order sizing agrees with the plain backtest engine for fractional market orders without a cash buffer."""
    panel = prices(symbols=SYMBOLS)
    market = build_market(panel, (), (0, 10))
    rules = sizing_rules(config(orders=OrderSettings(cash_buffer=0.0, fractional=True, collar=0.0, min_value=1e-6)))
    paper = backtest_paper(make_baseline("equal_weight"), panel, market, 3, 40, rules, 100_000.0, "open")
    plain = backtest(
        make_baseline("equal_weight"), panel, MarketPeriod(market, 3, 40, ExecutionRules(cost_rate=0.0), 100_000.0)
    )
    assert paper.result.equity == pytest.approx(plain.equity, rel=1e-9)


def test_invalid_replay_period_is_refused(tmp_path: Path) -> None:
    journal = tmp_path / "j.sqlite"
    with pytest.raises(InputError, match="at least two sessions"):
        replay(config(), prices(), [FixedSource(RotatingStrategy())], FIRST, FIRST, journal)
    closes = replace(prices(), open=None)
    with pytest.raises(InputError, match="no opening prices"):
        replay(config(), closes, [FixedSource(RotatingStrategy())], FIRST, LAST, journal)
    journal.touch()
    with pytest.raises(InputError, match="already exists"):
        replay(config(), prices(), [FixedSource(RotatingStrategy())], FIRST, LAST, journal)


def test_buys_funded_by_sales_are_sent_after_them(tmp_path: Path) -> None:
    settings = config(orders=OrderSettings(collar=0.2, funding="after_sales"))
    journal = tmp_path / "j.sqlite"
    replayed = replay(settings, prices(), [FixedSource(RotatingStrategy())], FIRST, date(2024, 1, 12), journal)
    store = Store.open(journal)
    rows = orders(store)
    store.close()
    assert {o.time_in_force for o in rows if o.side == "buy"} == {"day"}
    assert {o.time_in_force for o in rows if o.side == "sell"} == {"opg"}
    for bar in {o.bar for o in rows}:
        sold = [o.at for o in rows if o.bar == bar and o.side == "sell"]
        bought = [o.at for o in rows if o.bar == bar and o.side == "buy"]
        assert not sold or not bought or max(sold) < min(bought)
    assert replayed.orders > 3
