"""What the paper account holds, what is under way, and what it bought and sold."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pandas as pd

from finrl_pod.paper.records import TAKEN
from finrl_pod_app.dashboard.queries.paper_journal import KEPT, Journal

SHARE_DIGITS = 9  # the smallest fraction that a broker takes; sums of floats are rounded to it


@lru_cache(maxsize=KEPT)
def positions(journal: Journal) -> pd.DataFrame:
    """Own positions, the largest first: symbol, shares, average (price paid), price, value, weight, target, gain,
    realised. All who ask get the same frame, which is not to be changed.

    price: at the last decision. weight, target: of own equity; target is what the last decision asked for. gain: value
    over what was paid for the shares. realised: gains of shares that were sold, by average cost, and dividends, less
    fees. Symbols that are held no more but made gains are kept, with no shares.
    """
    held: dict[str, list[float]] = {}  # shares, cost, realised
    for event in _events(journal):
        shares, cost, realised = held.setdefault(event.symbol, [0.0, 0.0, 0.0])
        after = round(shares + event.change, SHARE_DIGITS)
        if event.kind == "action":  # a split changes shares and no cost; a dividend is income
            held[event.symbol] = [after, cost, realised + event.cash]
            continue
        if shares * event.change < 0:  # some of it is closed
            closed = min(abs(event.change), abs(shares)) / abs(shares)
            sign = 1 if shares > 0 else -1
            realised += sign * (closed * abs(shares)) * event.price - closed * cost
            cost *= 1 - closed
            if after * shares < 0:  # turned round: the rest opens the other side
                cost = after * event.price
        else:
            cost += event.change * event.price
        held[event.symbol] = [after, cost if after else 0.0, realised - event.fee]
    rows = [
        {"symbol": symbol, "shares": shares, "cost": cost, "realised": realised}
        for symbol, (shares, cost, realised) in held.items()
        if shares or realised
    ]
    frame = pd.DataFrame(rows, columns=["symbol", "shares", "cost", "realised"])
    frame["price"] = frame.symbol.map(journal.closes).astype(float)
    frame["average"] = (frame.cost / frame.shares).where(frame.shares != 0)
    frame["value"] = (frame.shares * frame.price).fillna(0.0)
    frame["gain"] = (frame.value - frame.cost).where(frame.shares != 0)
    worth = journal.cash + float(frame.value.sum())
    frame["weight"] = frame.value / worth if worth > 0 else float("nan")
    frame["target"] = frame.symbol.map(journal.targets).astype(float)
    columns = ["symbol", "shares", "average", "price", "value", "weight", "target", "gain", "realised"]
    return frame.sort_values(["value", "symbol"], ascending=[False, True])[columns].reset_index(drop=True)


def foreign(journal: Journal) -> pd.DataFrame:
    """Shares on the account that are not ours: symbol, shares."""
    total = journal.foreign.groupby("symbol").quantity.sum().round(SHARE_DIGITS)
    return total[total != 0].rename("shares").reset_index()


def under_way(journal: Journal) -> pd.DataFrame:
    """Intents that are neither filled nor given up: symbol, side, wanted, filled (shares), order (its state)."""
    orders = journal.orders[journal.orders.intent_id.isin(journal.intents.id)]
    filled = orders.groupby("intent_id").filled.sum()
    state = orders.groupby("intent_id").state.last()
    frame = journal.intents.assign(
        wanted=journal.intents.quantity,
        filled=journal.intents.id.map(filled).fillna(0.0),
        order=journal.intents.id.map(state).fillna("not sent yet"),
    )
    return frame[["symbol", "side", "wanted", "filled", "order", "reference_price", "deadline"]]


def orders(journal: Journal) -> pd.DataFrame:
    """All orders, the newest first, with the average price of what filled."""
    frame = journal.orders.iloc[::-1].reset_index(drop=True)
    frame["average"] = (frame.value / frame.filled).where(frame.filled > 0)
    columns = ["at", "bar", "symbol", "side", "quantity", "filled", "average", "limit_price", "time_in_force", "state",
               "status", "detail", "client_order_id"]  # fmt: skip
    return frame[columns]


def fills(journal: Journal) -> pd.DataFrame:
    """All executions, the newest first, each with its slippage in basis points of the decision's price."""
    frame = journal.fills.iloc[::-1].reset_index(drop=True)
    sign = frame.side.map({"buy": 1.0, "sell": -1.0}).astype(float)
    frame["value"] = frame.quantity * frame.price
    frame["slippage"] = sign * (frame.price / frame.reference_price - 1) * 10_000
    frame.loc[frame.bar.str.startswith("flatten"), "slippage"] = float("nan")  # sold without a decision's price
    return frame[
        ["time", "symbol", "side", "quantity", "price", "value", "fee", "slippage", "source", "client_order_id"]
    ]


def _events(journal: Journal) -> list[Any]:
    """Fills and corporate actions in the order in which they were booked. Shares that others took count as sold."""
    made = journal.fills
    sign = made.side.map({"buy": 1.0, "sell": -1.0}).astype(float)
    traded = pd.DataFrame({"at": made["at"], "kind": "fill", "symbol": made.symbol, "change": sign * made.quantity,
                           "price": made.price, "fee": made.fee, "cash": 0.0})  # fmt: skip
    done = journal.actions
    taken = done.kind == TAKEN
    booked = pd.DataFrame({"at": done["at"], "kind": taken.map({True: "fill", False: "action"}), "symbol": done.symbol,
                           "change": done.own_change, "price": (done.cash / -done.own_change).where(taken, 0.0),
                           "fee": 0.0, "cash": done.cash})  # fmt: skip
    parts = [part for part in (traded, booked) if len(part)]
    if not parts:
        return []
    return list(pd.concat(parts).sort_values("at", kind="stable").itertuples(index=False))
