"""The consistency checks pass a clean run and detect each kind of injected fault."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.soak.consistency import RunReport, check_run, compare_fills

SCHEMA = """
create table intents (id integer primary key, run, bar, symbol, side, quantity);
create table orders (id integer primary key, client_order_id, intent_id);
create table order_events (id integer primary key, order_id, state);
create table fills (id integer primary key, order_id, quantity, price);
create table corporate_actions (id integer primary key, symbol, own_change, foreign_change);
create table foreign_positions (id integer primary key, symbol, quantity);
create table foreign_fills (id integer primary key, symbol, quantity);
create table alerts (id integer primary key, level, kind);
create table decisions (id integer primary key, bar, outcome);
insert into intents values (1, 'soak', '2024-03-01', 'AAA', 'buy', '10');
insert into orders values (1, 'one', 1);
insert into order_events values (1, 1, 'working'), (2, 1, 'ended');
insert into fills values (1, 1, '4', '2.5'), (2, 1, '6', '2.5');
insert into decisions values (1, '2024-03-01', 'orders');
"""


class Run:
    """A consistent log and journal for tests to modify."""

    def __init__(self, folder: Path) -> None:
        self.log: list[dict[str, Any]] = []
        self.sql = [SCHEMA]
        self._folder = folder
        self.send("one")
        self.event("new", "one", "0", status="new")
        self.event("partial_fill", "one", "4", status="partially_filled", qty="4")
        self.event("fill", "one", "10", status="filled", qty="6")

    def send(self, name: str, arrived: float = 0.0, **more: Any) -> None:
        request = {
            "method": "POST",
            "path": "/v2/orders",
            "body": {"client_order_id": name},
            "status": 200,
            "answer": {},
        }
        self.log.append({"kind": "request", "at": "", "arrived": arrived, "fault": None, **request, **more})

    def event(self, event: str, name: str, filled: str, status: str, side: str = "buy", **more: Any) -> None:
        order = {
            "client_order_id": name,
            "symbol": "AAA",
            "side": side,
            "status": status,
            "filled_qty": filled,
            "filled_avg_price": "2.5",
        }
        self.log.append({"kind": "order", "event": event, "at": "", "order": order, **more})

    def verdict(self) -> RunReport:
        log, journal = self._folder / "log.jsonl", self._folder / "journal.sqlite"
        log.write_text("".join(json.dumps(record) + "\n" for record in self.log))
        journal.unlink(missing_ok=True)
        with sqlite3.connect(journal) as base:
            base.executescript("".join(self.sql))
        return check_run(log, journal)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_clean_run_passes(run: Run) -> None:
    verdict = run.verdict()
    assert verdict.faults == []
    assert verdict.facts["positions"] == {"AAA": "10"}
    assert {k: (str(a), str(b)) for k, (a, b) in verdict.fills.items()} == {
        ("soak", "2024-03-01", "AAA", "buy"): ("1E+1", "25")
    }


def second_live_order(run: Run) -> None:
    run.log = run.log[:2]
    run.sql.append("delete from fills; insert into orders values (2, 'two', 1); delete from order_events;")
    run.sql.append("insert into order_events values (1, 1, 'working'), (2, 2, 'working');")
    run.send("two")
    run.event("new", "two", "0", status="new")


def overfilled_intent(run: Run) -> None:
    run.sql.append("insert into orders values (2, 'two', 1); insert into order_events values (9, 2, 'ended');")
    run.sql.append("insert into fills values (9, 2, '1', '2.5');")
    run.send("two")
    run.event("fill", "two", "1", status="filled", qty="1")


def order_missing_in_journal(run: Run) -> None:
    run.send("two")
    run.event("new", "two", "0", status="new")


def fill_not_booked(run: Run) -> None:
    run.sql.append("delete from fills where id = 2;")


def fill_booked_twice(run: Run) -> None:
    run.sql.append("insert into fills values (3, 1, '6', '2.5');")


def wrong_price(run: Run) -> None:
    run.sql.append("update fills set price = '2.6' where id = 1;")


def end_not_recorded(run: Run) -> None:
    run.sql.append("insert into order_events values (3, 1, 'working');")


def external_fill_not_recorded(run: Run) -> None:
    run.event("fill", "external", "5", status="filled", qty="5")


def split_not_booked(run: Run) -> None:
    run.log.append({"kind": "account", "event": "split", "symbol": "AAA", "ratio": "2"})


def too_many_requests(run: Run) -> None:
    for i in range(201):
        run.log.append(
            {"kind": "request", "method": "GET", "path": "/", "arrived": 100 + i * 0.29, "status": 200, "body": None}
            | {"fault": None}
        )


def order_outside_hours(run: Run) -> None:
    # 9:30 in New York on 2024-03-01.
    run.send("late", 1709303400.0, status=422, answer={"message": "opg orders are not accepted"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inject", "sentence"),
    [
        (second_live_order, "had 2 live orders"),
        (overfilled_intent, "filled 11, 10 intended"),
        (order_missing_in_journal, "is not in the journal"),
        (fill_not_booked, "filled 10 at the broker, but 4 in the journal"),
        (fill_booked_twice, "filled 10 at the broker, but 16 in the journal"),
        (wrong_price, "from the broker's"),
        (end_not_recorded, "is filled at the broker, working in the journal"),
        (external_fill_not_recorded, "AAA: the broker holds 15, but the journal adds up to 10"),
        (split_not_booked, "AAA: the broker holds 20, but the journal adds up to 10"),
        (too_many_requests, "201 requests arrived"),
        (order_outside_hours, "order late was sent outside the allowed hours"),
    ],
)
def test_injected_faults_are_detected(run: Run, inject: Callable[[Run], None], sentence: str) -> None:
    inject(run)
    assert any(sentence in fault for fault in run.verdict().faults), run.verdict().faults


@pytest.mark.slow
def test_compare_fills_reports_differences(run: Run, tmp_path: Path) -> None:
    one = run.verdict()
    assert compare_fills(one, run.verdict()) == []
    run.log[-1]["order"]["filled_avg_price"] = "2.6"
    (sentence,) = compare_fills(one, run.verdict())
    assert "soak 2024-03-01 AAA buy" in sentence


def test_checks_import_nothing_from_the_project() -> None:
    import ast

    tree = ast.parse((Path(__file__).parent / "consistency.py").read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in names if name.startswith("finrl_pod")]
