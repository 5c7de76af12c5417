"""Checks a soak run using only the server's log and the journal; imports nothing from the project.

    python tests/soak/consistency.py server.jsonl journal.sqlite [fault-free-server.jsonl fault-free-journal.sqlite]

Prints faults and counts as JSON; the exit code is 1 if there are faults.
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

Intent = tuple[str, str, str, str]  # strategy, decision bar, symbol, side


@dataclass
class RunReport:
    """Result of checking one run.

    faults: one sentence each, empty if the run is consistent. facts: counts. fills: intent -> (shares, value).
    """

    faults: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    fills: dict[Intent, tuple[Decimal, Decimal]] = field(default_factory=dict)


def check_run(log: Path, journal: Path, max_latency: float = 0.0) -> RunReport:
    """Run all checks on one run.

    max_latency: simulated seconds that a request may take to reach the server.
    """
    verdict = RunReport()
    records = list(_records(log))
    state = _Journal(journal)
    _check_requests(records, verdict)
    final, most_live = _check_intents(records, state, verdict)
    _check_orders(final, state, verdict)
    _check_positions(records, final, state, verdict)
    _check_hours(records, max_latency, verdict)
    verdict.facts |= {
        "sessions": sum(r["kind"] == "account" and r["event"] == "close" for r in records),
        "orders": len(final),
        "intents": len(state.intents),
        "fills": sum(r["kind"] == "order" and r["event"] in ("fill", "partial_fill") for r in records),
        "most_live_orders_of_an_intent": most_live,
        "faults_injected": _tally(r["fault"] for r in records if r["kind"] == "request" and r["fault"]),
        "stream_faults": _tally(r["fault"] for r in records if r["kind"] == "stream" and r["what"] == "fault"),
        "alerts": state.alerts,
    }
    return verdict


def compare_fills(one: RunReport, other: RunReport) -> list[str]:
    """Return one sentence per intent that two runs filled differently."""
    differences = []
    for intent in sorted(one.fills.keys() | other.fills.keys()):
        a, b = one.fills.get(intent), other.fills.get(intent)
        if a != b:
            differences.append(f"{' '.join(intent)}: filled {a} with faults, {b} without")
    return differences


class _Journal:
    """The journal's final state, read with SQL."""

    def __init__(self, path: Path) -> None:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            intents = database.execute("select id, run, bar, symbol, side, quantity from intents").fetchall()
            self.intents = {(run, b, s, side): Decimal(q) for _, run, b, s, side, q in intents}
            key = {number: (run, b, s, side) for number, run, b, s, side, _ in intents}
            orders = database.execute("select id, client_order_id, intent_id from orders").fetchall()
            self.intent_of = {name: key[intent] for _, name, intent in orders}
            name = {number: client for number, client, _ in orders}
            self.filled: dict[str, Decimal] = dict.fromkeys(name.values(), Decimal(0))
            self.value: dict[str, Decimal] = dict.fromkeys(name.values(), Decimal(0))
            for order, quantity, price in database.execute("select order_id, quantity, price from fills"):
                self.filled[name[order]] += Decimal(quantity)
                self.value[name[order]] += Decimal(quantity) * Decimal(price)
            newest = "select max(id) from order_events group by order_id"
            last = f"select order_id, state from order_events where id in ({newest})"
            self.state = {name[order]: state for order, state in database.execute(last)}
            self.adjustments = defaultdict[str, Decimal](Decimal)
            for symbol, own, external in database.execute(
                "select symbol, own_change, foreign_change from corporate_actions"
            ):
                self.adjustments[symbol] += Decimal(own) + Decimal(external)
            for symbol, quantity in database.execute("select symbol, quantity from foreign_positions"):
                self.adjustments[symbol] += Decimal(quantity)
            for symbol, quantity in database.execute("select symbol, quantity from foreign_fills"):
                self.adjustments[symbol] += Decimal(quantity)
            kinds = database.execute(
                "select level || ' ' || kind, count(*) from alerts group by 1 order by 1"
            ).fetchall()
            self.alerts = dict(kinds)
            self.decisions = [outcome for (outcome,) in database.execute("select outcome from decisions")]


def _records(log: Path) -> Iterator[dict[str, Any]]:
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _check_requests(records: list[dict[str, Any]], verdict: RunReport) -> None:
    """Check that no 60-second window contains more arriving requests than the limit."""
    arrived = sorted(r["arrived"] for r in records if r["kind"] == "request")
    most, first = 0, 0
    for last, time in enumerate(arrived):
        while arrived[first] <= time - MINUTE:
            first += 1
        most = max(most, last - first + 1)
    verdict.facts |= {"requests": len(arrived), "most_requests_in_a_minute": most}
    if most > LIMIT:
        verdict.faults.append(f"{most} requests arrived within {MINUTE:.0f} s, {LIMIT} are allowed")
    refused = sum(r["kind"] == "request" and r["status"] == 429 and not r["fault"] for r in records)
    if refused:
        verdict.faults.append(f"{refused} requests were refused because of the rate limit")


def _check_intents(
    records: list[dict[str, Any]], journal: _Journal, verdict: RunReport
) -> tuple[dict[str, dict[str, Any]], int]:
    """Check after every event that an intent has at most one live order and its fills do not exceed its quantity."""
    sent = {r["body"]["client_order_id"] for r in _posts(records)}
    final: dict[str, dict[str, Any]] = {}
    of_intent: defaultdict[Intent, dict[str, dict[str, Any]]] = defaultdict(dict)
    most, reported = 0, set()
    for record in records:
        if record["kind"] != "order" or record["order"]["client_order_id"] not in sent:
            continue
        order = record["order"]
        name = order["client_order_id"]
        final[name] = order
        intent = journal.intent_of.get(name)
        if intent is None:
            if name not in reported:
                verdict.faults.append(f"order {name} was accepted by the server but is not in the journal")
                reported.add(name)
            continue
        of_intent[intent][name] = order
        live = [o["client_order_id"] for o in of_intent[intent].values() if o["status"] in LIVE]
        most = max(most, len(live))
        if len(live) > 1 and intent not in reported:
            verdict.faults.append(
                f"{' '.join(intent)} had {len(live)} live orders at {record['at']}: {', '.join(live)}"
            )
            reported.add(intent)
        filled = sum((Decimal(o["filled_qty"]) for o in of_intent[intent].values()), Decimal(0))
        if filled > journal.intents[intent] and (intent, "overfilled") not in reported:
            verdict.faults.append(f"{' '.join(intent)} filled {filled}, {journal.intents[intent]} intended")
            reported.add((intent, "overfilled"))
    for intent, orders in of_intent.items():
        shares = sum((Decimal(o["filled_qty"]) for o in orders.values()), Decimal(0))
        value = sum(
            (Decimal(o["filled_qty"]) * Decimal(o["filled_avg_price"] or 0) for o in orders.values()), Decimal(0)
        )
        if shares:
            verdict.fills[intent] = (shares.normalize(), round(value, 4).normalize())
    return final, most


def _check_orders(final: dict[str, dict[str, Any]], journal: _Journal, verdict: RunReport) -> None:
    """Check that the journal's final orders match the broker's."""
    for name, order in final.items():
        if name not in journal.filled:
            continue
        broker, own = Decimal(order["filled_qty"]), journal.filled[name]
        if broker != own:
            verdict.faults.append(f"order {name} filled {broker} at the broker, but {own} in the journal")
            continue
        if broker:
            gap = abs(journal.value[name] - broker * Decimal(order["filled_avg_price"]))
            if gap > Decimal("0.0001"):
                verdict.faults.append(f"the fills of order {name} differ by ${gap} from the broker's")
        ended = order["status"] not in LIVE
        if ended != (journal.state[name] not in ("sending", "working", "unknown")):
            verdict.faults.append(
                f"order {name} is {order['status']} at the broker, {journal.state[name]} in the journal"
            )
    for name, filled in journal.filled.items():
        if filled and name not in final:
            verdict.faults.append(f"the journal has fills of order {name}, which is unknown to the broker")


def _check_positions(
    records: list[dict[str, Any]], final: dict[str, dict[str, Any]], journal: _Journal, verdict: RunReport
) -> None:
    """Check that the journal's own fills, external fills and corporate actions add up to the broker's positions."""
    own = defaultdict[str, Decimal](Decimal)
    for symbol, quantity in journal.adjustments.items():
        own[symbol] += quantity
    for name, filled in journal.filled.items():
        *_, symbol, side = journal.intent_of[name]
        own[symbol] += filled if side == "buy" else -filled
    broker = defaultdict[str, Decimal](Decimal)
    for record in records:
        if record["kind"] == "order" and record["event"] in ("fill", "partial_fill"):
            sign = 1 if record["order"]["side"] == "buy" else -1
            broker[record["order"]["symbol"]] += sign * Decimal(record["qty"])
        elif record["kind"] == "account" and record["event"] == "split":
            broker[record["symbol"]] *= Decimal(record["ratio"])
    for symbol in sorted(own.keys() | broker.keys()):
        if own[symbol] != broker[symbol]:
            verdict.faults.append(
                f"{symbol}: the broker holds {broker[symbol]}, but the journal adds up to {own[symbol]}"
            )
    verdict.facts["positions"] = {s: str(q) for s, q in sorted(broker.items()) if q}
    verdict.facts["orders_of_the_daemon"] = len(final)
    verdict.facts["decisions"] = _tally(journal.decisions)


def _check_hours(records: list[dict[str, Any]], max_latency: float, verdict: RunReport) -> None:
    """Check that no opening-auction order was sent between 9:28 and 19:00 New York time, when they are refused."""
    late = [r for r in _posts(records) if r["status"] == 422 and "not accepted" in str(r["answer"])]
    for record in late:
        sent = datetime.fromtimestamp(record["arrived"] - max_latency, ZoneInfo("America/New_York"))
        if "09:28" <= f"{sent:%H:%M}" < "19:00":
            verdict.faults.append(
                f"order {record['body']['client_order_id']} was sent outside the allowed hours at {record['at']}"
            )
    verdict.facts["refused_outside_hours"] = len(late)


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
