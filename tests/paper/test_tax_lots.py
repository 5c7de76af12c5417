"""Tax lots: first in, first out, after splits and sales by other clients, and as CSV."""

from __future__ import annotations

import csv
from collections import defaultdict, deque
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from finrl_pod.paper.domain.records import ActionKind, CorporateAction
from finrl_pod.paper.execution.reconcile import book_action
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.tax_lots import gains_report, write_gains
from tests.paper.factories import SimulatedDaemon, write_off

pytestmark = pytest.mark.slow

END = date(2024, 2, 2)


@pytest.fixture
def sim(tmp_path: Path) -> SimulatedDaemon:
    sim = SimulatedDaemon(tmp_path)
    sim.day(END)
    return sim


def test_gains_equal_an_independent_fifo(sim: SimulatedDaemon) -> None:
    """A queue of single shares, as an independent count."""
    queues: dict[str, deque[Decimal]] = defaultdict(deque)
    expected = Decimal(0)
    for fill in sim.account._fills:
        for _ in range(int(fill.quantity)):
            if fill.side.value == "buy":
                queues[fill.symbol].append(fill.price)
            else:
                expected += fill.price - queues[fill.symbol].popleft()
    found = gains_report(sim.store)
    assert sum((gain.gain for gain in found.realised), Decimal(0)) == pytest.approx(expected, abs=Decimal("1e-9"))
    held = {s: Decimal(len(q)) for s, q in queues.items() if q}
    open_ = defaultdict(Decimal)
    for lot in found.open_lots:
        open_[lot.symbol] += lot.shares
    assert dict(open_) == held == {s: q for s, q in sim.daemon.trader.positions.items() if q}
    assert sum(lot.cost for lot in found.open_lots) == pytest.approx(sum(sum(q) for q in queues.values()))


def test_all_gains_add_up_to_the_change_of_equity(sim: SimulatedDaemon) -> None:
    figures = gains_report(sim.store).symbols
    total = sum(row.realised_gain + row.unrealised_gain + row.dividends for row in figures.values())
    assert total == pytest.approx(float(sim.daemon.trader.equity()) - 100_000)


def test_a_split_changes_shares_and_not_cost(sim: SimulatedDaemon) -> None:
    before, ledger = gains_report(sim.store), sim.daemon._c.ledger
    symbol = before.open_lots[0].symbol
    split = CorporateAction("s", ActionKind.SPLIT, symbol, END, new=Decimal(3))
    book_action(ledger, split, datetime.now(UTC), pays_dividends=True)
    after = gains_report(sim.store)
    for old, new in zip(before.open_lots, after.open_lots, strict=True):
        assert new.shares == (3 if old.symbol == symbol else 1) * old.shares
        assert new.cost == old.cost


def test_shares_sold_by_other_clients_are_a_sale(sim: SimulatedDaemon) -> None:
    before = gains_report(sim.store)
    ledger = sim.daemon._c.ledger
    lot = before.open_lots[0]
    now = datetime.now(UTC)
    ledger.book(write_off(lot.symbol, Decimal(1), Decimal(50), now), now)
    gain = gains_report(sim.store).realised[-1]
    assert (gain.sale, gain.lot, gain.shares, gain.proceeds) == (0, lot.lot, 1, 50)
    assert gain.gain == pytest.approx(50 - lot.cost / lot.shares)


def test_csv_files_hold_every_row(sim: SimulatedDaemon, tmp_path: Path) -> None:
    report = gains_report(sim.store)
    write_gains(report, tmp_path / "out")
    for name in ("realised", "open_lots", "symbols"):
        with (tmp_path / "out" / f"{name}.csv").open() as lines:
            rows = list(csv.DictReader(lines))
        assert len(rows) == len(getattr(report, name)) > 0
    sold = sum(Decimal(row.quantity) for row in sim.store.rows(schema.fills))
    shares = Decimal(0)
    for row in report.realised:
        shares += 2 * row.shares
    assert sold == shares + sum(row.shares for row in report.open_lots)
