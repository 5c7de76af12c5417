"""Judges a soak from the server's log and the journal's final state alone. Imports nothing of the project.

    python tests/soak/consistency.py server.jsonl journal.sqlite [fault-free-server.jsonl fault-free-journal.sqlite]

Prints what it found as JSON; the exit code is 1 when anything is wrong.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

LIVE = {
    *("new", "partially_filled", "accepted", "pending_new", "pending_cancel", "pending_replace", "held", "stopped"),
    *("accepted_for_bidding", "calculated", "suspended", "done_for_day"),
}
LIMIT, MINUTE = 200, 60.0

Intent = tuple[str, str, str]  # decision bar, symbol, side


@dataclass
class RunReport:
    """faults: sentences, none when all is well. facts: what was counted. fills: intent -> (shares, value)."""

    faults: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    fills: dict[Intent, tuple[Decimal, Decimal]] = field(default_factory=dict)


def check_run(log: Path, journal: Path, on_its_way: float = 0.0) -> RunReport:
    """All checks of one run. on_its_way: simulated seconds that a request may take to arrive."""
    verdict = RunReport()
    records = list(_records(log))
    book = _Journal(journal)
    _check_requests(records, verdict)
    final, live_together = _check_intents(records, book, verdict)
    _check_orders(final, book, verdict)
    _check_positions(records, final, book, verdict)
    _check_hours(records, on_its_way, verdict)
    verdict.facts |= {
        "sessions": sum(r["kind"] == "account" and r["event"] == "close" for r in records),
        "orders": len(final),
        "intents": len(book.intents),
        "fills": sum(r["kind"] == "order" and r["event"] in ("fill", "partial_fill") for r in records),
        "most_live_orders_of_an_intent": live_together,
        "faults_injected": _tally(r["fault"] for r in records if r["kind"] == "request" and r["fault"]),
        "stream_faults": _tally(r["fault"] for r in records if r["kind"] == "stream" and r["what"] == "fault"),
        "alerts": book.alerts,
    }
    return verdict


def compare_fills(one: RunReport, other: RunReport) -> list[str]:
    """What two runs filled differently, a sentence each."""
    found = []
    for intent in sorted(one.fills.keys() | other.fills.keys()):
        a, b = one.fills.get(intent), other.fills.get(intent)
        if a != b:
            found.append(f"{' '.join(intent)}: filled {a} with faults, {b} without")
    return found


class _Journal:
    """The journal's final state, read with SQL."""

    def __init__(self, path: Path) -> None:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as base:
            intents = base.execute("select id, bar, symbol, side, quantity from intents").fetchall()
            self.intents = {(b, s, side): Decimal(q) for _, b, s, side, q in intents}
            key = {number: (b, s, side) for number, b, s, side, _ in intents}
            orders = base.execute("select id, client_order_id, intent_id from orders").fetchall()
            self.intent_of = {name: key[intent] for _, name, intent in orders}
            name = {number: client for number, client, _ in orders}
            self.filled: dict[str, Decimal] = dict.fromkeys(name.values(), Decimal(0))
            self.value: dict[str, Decimal] = dict.fromkeys(name.values(), Decimal(0))
            for order, quantity, price in base.execute("select order_id, quantity, price from fills"):
                self.filled[name[order]] += Decimal(quantity)
                self.value[name[order]] += Decimal(quantity) * Decimal(price)
            newest = "select max(id) from order_events group by order_id"
            last = f"select order_id, state from order_events where id in ({newest})"
            self.state = {name[order]: state for order, state in base.execute(last)}
            self.moved = defaultdict[str, Decimal](Decimal)
            for symbol, own, foreign in base.execute(
                "select symbol, own_change, foreign_change from corporate_actions"
            ):
                self.moved[symbol] += Decimal(own) + Decimal(foreign)
            for symbol, quantity in base.execute("select symbol, quantity from foreign_positions"):
                self.moved[symbol] += Decimal(quantity)
            for symbol, quantity in base.execute("select symbol, quantity from foreign_fills"):
                self.moved[symbol] += Decimal(quantity)
            kinds = base.execute("select level || ' ' || kind, count(*) from alerts group by 1 order by 1").fetchall()
            self.alerts = dict(kinds)
            self.decisions = dict(base.execute("select bar, outcome from decisions").fetchall())


def _records(log: Path) -> Iterator[dict[str, Any]]:
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _check_requests(records: list[dict[str, Any]], verdict: RunReport) -> None:
    """No sixty seconds with more requests than the limit, as they arrived at the server."""
    arrived = sorted(r["arrived"] for r in records if r["kind"] == "request")
    most, first = 0, 0
    for last, moment in enumerate(arrived):
        while arrived[first] <= moment - MINUTE:
            first += 1
        most = max(most, last - first + 1)
    verdict.facts |= {"requests": len(arrived), "most_requests_in_a_minute": most}
    if most > LIMIT:
        verdict.faults.append(f"{most} requests arrived within {MINUTE:.0f} s, {LIMIT} are allowed")
    refused = sum(r["kind"] == "request" and r["status"] == 429 and not r["fault"] for r in records)
    if refused:
        verdict.faults.append(f"{refused} requests were refused because the limit was spent")


def _check_intents(
    records: list[dict[str, Any]], book: _Journal, verdict: RunReport
) -> tuple[dict[str, dict[str, Any]], int]:
    """Event by event: an intent's live orders are one at most, and its fills never exceed what was intended."""
    sent = {r["body"]["client_order_id"] for r in _posts(records)}
    final: dict[str, dict[str, Any]] = {}
    of_intent: defaultdict[Intent, dict[str, dict[str, Any]]] = defaultdict(dict)
    most, complained = 0, set()
    for record in records:
        if record["kind"] != "order" or record["order"]["client_order_id"] not in sent:
            continue
        order = record["order"]
        name = order["client_order_id"]
        final[name] = order
        intent = book.intent_of.get(name)
        if intent is None:
            if name not in complained:
                verdict.faults.append(f"order {name} was taken by the server and is not in the journal")
                complained.add(name)
            continue
        of_intent[intent][name] = order
        live = [o["client_order_id"] for o in of_intent[intent].values() if o["status"] in LIVE]
        most = max(most, len(live))
        if len(live) > 1 and intent not in complained:
            verdict.faults.append(
                f"{' '.join(intent)} had {len(live)} live orders at {record['at']}: {', '.join(live)}"
            )
            complained.add(intent)
        filled = sum((Decimal(o["filled_qty"]) for o in of_intent[intent].values()), Decimal(0))
        if filled > book.intents[intent] and (intent, "more") not in complained:
            verdict.faults.append(f"{' '.join(intent)} filled {filled}, {book.intents[intent]} were intended")
            complained.add((intent, "more"))
    for intent, orders in of_intent.items():
        shares = sum((Decimal(o["filled_qty"]) for o in orders.values()), Decimal(0))
        value = sum(
            (Decimal(o["filled_qty"]) * Decimal(o["filled_avg_price"] or 0) for o in orders.values()), Decimal(0)
        )
        if shares:
            verdict.fills[intent] = (shares.normalize(), round(value, 4).normalize())
    return final, most


def _check_orders(final: dict[str, dict[str, Any]], book: _Journal, verdict: RunReport) -> None:
    """At the end the journal knows each order as the broker does."""
    for name, order in final.items():
        if name not in book.filled:
            continue
        there, here = Decimal(order["filled_qty"]), book.filled[name]
        if there != here:
            verdict.faults.append(f"order {name} filled {there} at the broker, the journal has {here}")
            continue
        if there:
            gap = abs(book.value[name] - there * Decimal(order["filled_avg_price"]))
            if gap > Decimal("0.0001"):
                verdict.faults.append(f"the fills of order {name} are {gap} dollars off the broker's")
        ended = order["status"] not in LIVE
        if ended != (book.state[name] not in ("sending", "working", "unknown")):
            verdict.faults.append(f"order {name} is {order['status']} at the broker, {book.state[name]} in the journal")
    for name, filled in book.filled.items():
        if filled and name not in final:
            verdict.faults.append(f"the journal has fills of order {name}, which the broker never had")


def _check_positions(
    records: list[dict[str, Any]], final: dict[str, dict[str, Any]], book: _Journal, verdict: RunReport
) -> None:
    """Own fills, foreign ones and corporate actions of the journal make the broker's positions."""
    here = defaultdict[str, Decimal](Decimal)
    for symbol, quantity in book.moved.items():
        here[symbol] += quantity
    for name, filled in book.filled.items():
        _, symbol, side = book.intent_of[name]
        here[symbol] += filled if side == "buy" else -filled
    there = defaultdict[str, Decimal](Decimal)
    for record in records:
        if record["kind"] == "order" and record["event"] in ("fill", "partial_fill"):
            sign = 1 if record["order"]["side"] == "buy" else -1
            there[record["order"]["symbol"]] += sign * Decimal(record["qty"])
        elif record["kind"] == "account" and record["event"] == "split":
            there[record["symbol"]] *= Decimal(record["ratio"])
    for symbol in sorted(here.keys() | there.keys()):
        if here[symbol] != there[symbol]:
            verdict.faults.append(f"{symbol}: the broker holds {there[symbol]}, the journal makes {here[symbol]}")
    verdict.facts["positions"] = {s: str(q) for s, q in sorted(there.items()) if q}
    verdict.facts["orders_of_the_daemon"] = len(final)
    verdict.facts["decisions"] = _tally(book.decisions.values())


def _check_hours(records: list[dict[str, Any]], on_its_way: float, verdict: RunReport) -> None:
    """No order for the opening auction was sent in the hours in which these are refused: 9:28 to 19:00 in New York."""
    late = [r for r in _posts(records) if r["status"] == 422 and "not accepted" in str(r["answer"])]
    for record in late:
        sent = datetime.fromtimestamp(record["arrived"] - on_its_way, ZoneInfo("America/New_York"))
        if "09:28" <= f"{sent:%H:%M}" < "19:00":
            verdict.faults.append(f"order {record['body']['client_order_id']} was sent out of hours at {record['at']}")
    verdict.facts["refused_for_their_hour"] = len(late)


def _posts(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [r for r in records if r["kind"] == "request" and r["method"] in ("POST", "PATCH") and r["body"]]


def _tally(values: Iterable[str]) -> dict[str, int]:
    counts: defaultdict[str, int] = defaultdict(int)
    for value in values:
        counts[value] += 1
    return dict(sorted(counts.items()))


def main(arguments: list[str]) -> int:
    verdict = check_run(Path(arguments[0]), Path(arguments[1]))
    if len(arguments) > 2:
        verdict.faults += compare_fills(verdict, check_run(Path(arguments[2]), Path(arguments[3])))
    json.dump({"faults": verdict.faults, **verdict.facts}, sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
