"""Tax lots: first in, first out and by named lots, after splits, as CSV and as metrics by symbol."""

from __future__ import annotations

import csv
import urllib.request
from collections import defaultdict, deque
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from finrl_pod_app.paper.gains_report import gains_report, write_gains

from finrl_pod.errors import InputError
from finrl_pod.paper.domain.records import ActionKind, CorporateAction
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.tax_lots import read_selection, tax_lots
from finrl_pod.paper.monitoring.health import HealthServer, Heartbeat
from finrl_pod.paper.monitoring.symbols import symbol_figures
from tests.paper.factories import SimulatedDaemon

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
    found = tax_lots(sim.store)
    assert sum((gain.gain for gain in found.realised), Decimal(0)) == pytest.approx(expected, abs=Decimal("1e-9"))
    held = {s: Decimal(len(q)) for s, q in queues.items() if q}
    open_ = defaultdict(Decimal)
    for lot in found.open:
        open_[lot.symbol] += lot.shares
    assert dict(open_) == held == {s: q for s, q in sim.daemon.trader.positions.items() if q}
    assert sum(lot.cost for lot in found.open) == pytest.approx(sum(sum(q) for q in queues.values()))


def test_all_gains_add_up_to_the_change_of_equity(sim: SimulatedDaemon) -> None:
    figures = symbol_figures(sim.store)
    total = sum(row.realised_gain + row.unrealised_gain + row.dividends for row in figures.values())
    assert total == pytest.approx(float(sim.daemon.trader.equity()) - 100_000)


def test_named_lots_are_closed_first(sim: SimulatedDaemon, tmp_path: Path) -> None:
    fifo = tax_lots(sim.store).realised
    sale = next(g.sale for g in fifo if sum(1 for other in fifo if other.sale == g.sale) > 1)
    parts = [g for g in fifo if g.sale == sale]
    later = parts[-1]
    file = tmp_path / "lots.csv"
    file.write_text(f"sale,lot,shares\n{sale},{later.lot},{later.shares}\n")
    named = [g for g in tax_lots(sim.store, read_selection(file)).realised if g.sale == sale]
    assert (named[0].lot, named[0].shares) == (later.lot, later.shares)
    assert sum(g.shares for g in named) == sum(g.shares for g in parts)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("sale,lot\n1,2\n", "must have the columns sale, lot, shares"),
        ("sale,lot,shares\nx,1,1\n", "whole numbers"),
        ("sale,lot,shares\n1,1,NaN\n", "shares must be above 0"),
        ("sale,lot,shares\n999999,1,1\n", "there is no sale 999999"),
        ("sale,lot,shares\nSALE,999999,1\n", "cannot close 1 shares of lot 999999: it has no shares then"),
        ("sale,lot,shares\nSALE,LOT,100000\n", "cannot close 100000 shares of lot"),
    ],
)
def test_invalid_selections_are_refused(sim: SimulatedDaemon, tmp_path: Path, rows: str, expected: str) -> None:
    gain = tax_lots(sim.store).realised[0]
    file = tmp_path / "lots.csv"
    file.write_text(rows.replace("SALE", str(gain.sale)).replace("LOT", str(gain.lot)))
    with pytest.raises(InputError, match=expected):
        gains_report(sim.store, file)


def test_a_split_changes_shares_and_not_cost(sim: SimulatedDaemon) -> None:
    before, ledger = tax_lots(sim.store), sim.daemon._c.ledger
    symbol = before.open[0].symbol
    split = CorporateAction("s", ActionKind.SPLIT, symbol, END, new=Decimal(3))
    ledger.record_corporate_action(split, 2 * ledger.positions[symbol], Decimal(0), Decimal(0), datetime.now(UTC))
    after = tax_lots(sim.store)
    for old, new in zip(before.open, after.open, strict=True):
        assert new.shares == (3 if old.symbol == symbol else 1) * old.shares
        assert new.cost == old.cost


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


def test_metrics_are_served_by_symbol(sim: SimulatedDaemon) -> None:
    beat = Heartbeat()
    beat.beat(trading=True)
    server = HealthServer(0, beat, dict, lambda: symbol_figures(sim.store))
    try:
        text = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=5).read().decode()
    finally:
        server.close()
    held = next(s for s, q in sim.daemon.trader.positions.items() if q)
    assert f'finrl_pod_symbol_shares{{symbol="{held}"}} {float(sim.daemon.trader.positions[held])}' in text
    assert 'finrl_pod_symbol_realised_gain{symbol="AA"}' in text
