"""Rows 26, 27 and 38: splits, price jumps and losses against the real daemon process."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finrl_pod.data.panel import make_panel
from finrl_pod.fake_alpaca.settings import CorporateAction
from finrl_pod.types import Panel
from tests.paper.factories import prices
from tests.paper.process.harness import DaemonHarness
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow

JUMP = date(2024, 2, 14)


def panel_with_jumps() -> Panel:
    """BB falls by 35% and CC by half overnight before the JUMP session; AA splits at the broker on that day.

    AA's prices are adjusted for the split, as the fake server expects.
    """
    made = prices()
    late = made.times.astype("datetime64[D]") >= np.datetime64(JUMP)
    factor = np.ones((len(made.times), 3))
    factor[late, 1], factor[late, 2] = 0.65, 0.5
    columns = {name: np.round(getattr(made, name) * factor, 2) for name in ("open", "high", "low", "close")}
    columns["low"] = np.minimum(columns["low"], np.minimum(columns["open"], columns["close"]))
    return make_panel(
        made.times, list(made.symbols), {**columns, "volume": made.volume}, name="synthetic", source="synthetic"
    )


@pytest.mark.parametrize(("new", "old"), [(2.0, 1.0), (1.0, 4.0)], ids=["split", "reverse split"])
def test_split_is_booked_large_move_traded_and_jump_halts_its_symbol(tmp_path: Path, new: float, old: float) -> None:
    split = CorporateAction("AA", JUMP.isoformat(), "split", new=new, old=old)
    config = {"": {"symbols": ["AA", "BB", "CC"]}, "data": {"window": 20}, "orders": {"collar": 0.2}}
    with DaemonHarness(
        tmp_path, config=config, panel=panel_with_jumps(), start=date(2024, 2, 12), actions=(split,)
    ) as harness:
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        before: list[Any] = []
        (day,) = [s for s in harness.days if s.date == JUMP]
        symbols = ("AA", "BB", "CC")
        harness.run_until(
            day.open - 7 * 3600, lambda: before.append({s: harness.exchange.ledger.qty(s) for s in symbols})
        )
        harness.run_until(harness.days[4].close + 600, harness.slow_clock)
        assert harness.stop() == 0
        verdict = check_run(harness.log, harness.journal)
        assert verdict.faults == []
        booked = harness.query("select kind, symbol, own_change from corporate_actions")
        ratio = Decimal(new) / Decimal(old)
        change = before[0]["AA"] * (ratio - 1)
        assert [(kind, symbol, Decimal(c)) for kind, symbol, c in booked] == [("split", "AA", change)]
        row = harness.days.index(day) - 1
        panel, bar = panel_with_jumps(), harness.days[row].date.isoformat()
        (closes,) = panel.close[panel.times.astype("datetime64[D]") == np.datetime64(bar)]
        sized = harness.query(f"select reference_price from intents where symbol = 'AA' and bar = '{bar}'")
        assert [float(price) for (price,) in sized] == [pytest.approx(closes[0])]  # price after the split
        value = sum(
            float(before[0][symbol] * (ratio if symbol == "AA" else 1)) * close
            for symbol, close in zip(panel.symbols, closes.tolist(), strict=True)
        )
        ((equity, cash),) = harness.query(f"select equity, cash from equity where session = '{bar}'")
        assert float(equity) - float(cash) == pytest.approx(value)  # unchanged overnight
        halts = [alert for alert in harness.alerts() if "symbol_halted" in alert]
        assert len(halts) == 1
        assert "CC is halted until acknowledged" in halts[0]
        after = {o.symbol for o in harness.orders(JUMP.isoformat())}
        assert "BB" in after
        assert "CC" not in after


def test_loss_beyond_the_limit_allows_only_reducing_orders(tmp_path: Path) -> None:
    with DaemonHarness(
        tmp_path, config={"risk": {"daily_loss": 0.0005, "drawdown": 0.9, "max_turnover": 10.0}}
    ) as harness:
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        harness.run_until(harness.days[11].close + 600, harness.slow_clock)
        assert harness.stop() == 0
        assert check_run(harness.log, harness.journal).faults == []
        ((since,),) = harness.query("select at from risk_states where state = 'reducing'")
        assert any(alert.startswith("critical reducing") for alert in harness.alerts())
        later = [
            (r["body"]["side"])
            for r in harness.requests("POST", "/v2/orders")
            if datetime.fromtimestamp(r["arrived"], UTC).isoformat() > since
        ]
        assert set(later) <= {"sell"}
        withheld = harness.query(f"select count(*) from intent_events where state = 'withheld' and at > '{since}'")
        assert withheld[0][0] >= 1
