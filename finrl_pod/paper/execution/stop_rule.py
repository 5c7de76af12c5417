"""The stop rule: a warning when the active return of the account leaves the band of the champion backtest."""

from __future__ import annotations

from decimal import Decimal

from sqlalchemy import Table, select

from finrl_pod.evaluate.stop_rule import HORIZON, ActiveBand, active_return
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.decision_state import ActiveReturn, BaseAccount, DecisionState
from finrl_pod.paper.journal.store import Store

ALERT = "stop_rule"  # kind of the alert


def measure(
    store: Store, run: str, base: BaseAccount, equity: Decimal, band: ActiveBand | None, marks: Table = schema.equity
) -> ActiveReturn | None:
    """Return the active return up to the decision of `base`; None at the first decision.

    base: base account after this decision. equity: own equity at the decision bar. marks: table of own equity by
    session, `strategy_equity` for one of several strategies.
    """
    values = [*_marks(store, run, base.started, marks), (equity, base.growth)]
    if len(values) < 2 or min(own_equity for own_equity, _ in values) <= 0:
        return None
    bars, value = active_return([float(own_equity) for own_equity, _ in values], [growth for _, growth in values])
    if band is None:
        return ActiveReturn(bars, value, None, None, left=False)
    lower = band.edge(bars)
    return ActiveReturn(bars, value, lower, band.level, left=value < lower)


def warning(current: ActiveReturn | None, previous: ActiveReturn | None) -> str | None:
    """Return the message of the alert if the active return has left the band since the last decision, else None."""
    if current is None or not current.left or (previous is not None and previous.left):
        return None
    return (
        f"the account's active return over {current.bars} sessions is {current.value:+.2%} (log, over its base), below "
        f"the {current.lower:+.2%} of its backtest's band, which {current.level:.0%} of histories leave within a year: "
        "review the champion, or stop it with `paper halt`"
    )


def _marks(store: Store, run: str, started: str, marks: Table) -> list[tuple[Decimal, float]]:
    """Own equity and the base growth at the decisions of the last year since the base account started."""
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
    accounts = [(Decimal(row.equity), DecisionState.decode(row.state).base) for row in reversed(rows)]
    return [(own_equity, base.growth) for own_equity, base in accounts if base is not None and base.started == started]
