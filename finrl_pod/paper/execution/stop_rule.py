"""The stop rule: a warning when the account's active return leaves the band of the champion's backtest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from sqlalchemy import Table, select

from finrl_pod.evaluate.stop_rule import HORIZON, ActiveBand, active_return
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store

ALERT = "stop_rule"  # kind of the alert


def measure(
    store: Store,
    run: str,
    base: Mapping[str, Any],
    equity: Decimal,
    band: ActiveBand | None,
    marks: Table = schema.equity,
) -> dict[str, Any] | None:
    """The active return up to the decision of `base` and the band's lower edge, as plain JSON values.

    marks: table of own equity by session, `strategy_equity` for one of several strategies.
    base: the base account after this decision, as `base_account.advance` returns it. equity: own, at the decision bar.
    bars: over which it is measured, at most a year. lower, level: of the band; None without one. left: whether it is
    below. Returns None at the first decision.
    """
    values = [*_marks(store, run, base["started"], marks), (equity, base["growth"])]
    if len(values) < 2 or min(own for own, _ in values) <= 0:
        return None
    bars, value = active_return([float(own) for own, _ in values], [growth for _, growth in values])
    lower = None if band is None else band.edge(bars)
    return {
        "bars": bars,
        "value": value,
        "lower": lower,
        "level": None if band is None else band.level,
        "left": lower is not None and value < lower,
    }


def warning(now: Mapping[str, Any] | None, before: Mapping[str, Any] | None) -> str | None:
    """The alert's sentence when a measurement leaves the band that the one before was in, else None."""
    if now is None or not now["left"] or (before is not None and before["left"]):
        return None
    return (
        f"the account's active return over {now['bars']} sessions is {now['value']:+.2%} (log, over its base), below "
        f"the {now['lower']:+.2%} of its backtest's band, which {now['level']:.0%} of histories leave within a year: "
        "review the champion, or stop it with `paper halt`"
    )


def _marks(store: Store, run: str, started: str, marks: Table) -> list[tuple[Decimal, float]]:
    """Own equity and the base's growth at the decisions of the last year since the base account started."""
    decisions = schema.decisions.c
    own_marks = [marks.c.run == run] if "run" in marks.c else []
    with store.read() as connection:
        rows = connection.execute(
            select(decisions.state, marks.c.equity)
            .join(marks, marks.c.session == decisions.bar)
            .where(decisions.run == run, decisions.state.is_not(None), *own_marks)
            .order_by(decisions.id.desc())
            .limit(HORIZON)
        ).all()
    accounts = [(Decimal(row.equity), json.loads(row.state)["base"]) for row in reversed(rows)]
    return [(own, base["growth"]) for own, base in accounts if base is not None and base["started"] == started]
