"""The stop rule: a warning when the active return of the account leaves the band of the champion backtest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

import numpy as np
from sqlalchemy import Table, select

from finrl_pod.errors import count_text
from finrl_pod.evaluate.active_management import HORIZON, ActiveBand, active_growth
from finrl_pod.evaluate.backtest import lookback_of, window_at
from finrl_pod.market.protocols import MandatedStrategy
from finrl_pod.paper.domain.flows import NOW, flow_adjusted
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.capital_flows import capital_flows
from finrl_pod.paper.journal.decision_state import ActiveReturn, BaseAccount, DecisionState
from finrl_pod.paper.journal.store import Store
from finrl_pod.types import Floats, Panel, Positions, Window

ALERT = "stop_rule"  # kind of the alert
_Mark = tuple[str, str, Decimal, float]  # time and bar of a decision, own equity, growth of the base


def measure(
    store: Store, run: str, base: BaseAccount, equity: Decimal, band: ActiveBand | None, marks: Table = schema.equity
) -> ActiveReturn | None:
    """Return the active return up to the decision of `base`; None at the first decision.

    Own equity counts as if the dividends that the account does not pay were reinvested, like those of the base.

    base: base account after this decision. equity: own equity at the decision bar. marks: table of own equity by
    session, `strategy_equity` for one of several strategies.
    """
    values = [*_marks(store, run, base.started, marks), (NOW, base.time[:10], equity, base.growth)]
    if len(values) < 2 or min(own_equity for *_, own_equity, _ in values) <= 0:
        return None
    bars, value = active_growth(_own_values(store, run, values, marks), [growth for *_, growth in values])
    if band is None:
        return ActiveReturn(bars, value, None, None, left=False)
    lower = band.edge(bars)
    return ActiveReturn(bars, value, lower, band.level, left=value < lower)


def warning(current: ActiveReturn | None, previous: ActiveReturn | None) -> str | None:
    """Return the message of the alert if the active return has left the band since the last decision, else None."""
    if current is None or not current.left or (previous is not None and previous.left):
        return None
    return (
        f"the account's active return over {count_text(current.bars, 'session')} is {current.value:+.2%} (log, over "
        f"its base), below the {current.lower:+.2%} of its backtest's band, which {current.level:.0%} of histories "
        "leave within a year: review the champion, or stop it with `paper halt`"
    )


def _own_values(store: Store, run: str, marks: Sequence[_Mark], table: Table) -> list[float]:
    """Own equity by mark, without deposits and withdrawals, with unpaid dividends reinvested from their ex-date on.

    A dividend that is paid later counts as a deposit then.
    """
    query = (
        select(schema.corporate_actions.c.at, schema.corporate_actions.c.ex_date, schema.action_parts.c.unpaid)
        .join_from(schema.action_parts, schema.corporate_actions)
        .where(schema.action_parts.c.run == run)
    )
    dividends = [(row, Decimal(row.unpaid)) for row in store.query(query)]
    payments = [(row.at, -amount) for row, amount in dividends if amount < 0]
    flows = [*capital_flows(store, run if "run" in table.c else ""), *payments]
    _, *own_values = flow_adjusted(0.0, [(at, equity) for at, _, equity, _ in marks], flows)
    factor = 1.0
    values = []
    previous_bar = marks[0][1]
    for (_, bar, equity, _), value in zip(marks, own_values, strict=True):
        amounts = (amount for row, amount in dividends if amount > 0 and previous_bar < row.ex_date <= bar)
        factor *= 1 + float(sum(amounts, Decimal(0)) / equity)
        values.append(factor * float(value))
        previous_bar = bar
    return values


def _marks(store: Store, run: str, started: str, marks: Table) -> list[_Mark]:
    """Marks of the decisions of the last year since the base account started."""
    decisions = schema.decisions.c
    own_marks = [marks.c.run == run] if "run" in marks.c else []
    query = (
        select(marks.c.at, decisions.bar, decisions.state, marks.c.equity)
        .join(marks, marks.c.session == decisions.bar)
        .where(decisions.run == run, decisions.state.is_not(None), *own_marks)
        .order_by(decisions.id.desc())
        .limit(HORIZON)
    )
    rows = [(row, DecisionState.decode(row.state).base) for row in reversed(store.query(query))]
    return [
        (row.at, row.bar, Decimal(row.equity), base.growth)
        for row, base in rows
        if base is not None and base.started == started
    ]


def advance(
    base: MandatedStrategy, account: BaseAccount | None, panel: Panel, cash_buffer: float, auction: str,
    cost_rate: float = 0.0,
) -> BaseAccount:  # fmt: skip
    """Return the base account after its decision on the last bar of the panel.

    account: account after the previous decision; None, or one older than the price window of the base, starts a new
    account in cash. auction: "open" or "close". cost_rate: cost of a trade as a share of its value.
    """
    window = window_at(panel, len(panel.times) - 1, lookback_of(base))
    now = str(window.times[-1])
    rows = [] if account is None else np.flatnonzero(window.times[:-1] == np.datetime64(account.time)).tolist()
    weights = np.zeros(len(window.symbols))
    growth = 1.0
    started = now
    if account is None or not rows:
        base.restore(None, window.symbols)
    else:
        base.restore(account.strategy, window.symbols)
        weights, growth = _advance_weights(account, window, rows[0], auction, cost_rate)
        growth *= account.growth
        started = account.started
    target = base.target_weights(window, Positions(weights=weights, cash=1 - float(weights.sum()), equity=1.0))
    return BaseAccount(
        time=now,
        started=started,
        growth=growth,
        held=_by_symbol(window, weights),
        target=None if target is None else _by_symbol(window, target * (1 - cash_buffer)),
        strategy=base.state(),
    )


def _advance_weights(
    account: BaseAccount, window: Window, t: int, auction: str, cost_rate: float
) -> tuple[Floats, float]:
    """Weights at the last bar and growth since bar t, with the target bought in the auction of the next bar."""
    close = _forward_filled(window.close)
    fills = close[t + 1]
    if auction == "open" and window.open is not None:
        fills = np.where(np.isfinite(window.open[t + 1]), window.open[t + 1], fills)
    weights, growth = _drift(_weights(account.held, window), fills / close[t])
    if account.target is not None:
        target, _ = _drift(_weights(account.target, window), fills / close[t])
        growth *= 1 - cost_rate * float(np.abs(target - weights).sum())
        weights = target
    weights, later = _drift(weights, close[-1] / fills)
    return weights, growth * later


def _drift(weights: Floats, ratio: Floats) -> tuple[Floats, float]:
    values = weights * ratio
    growth = 1 + float((values - weights).sum())
    return values / growth, growth


def _forward_filled(close: Floats) -> Floats:
    """Closes [T, N] forward-filled over gaps; 1.0 before the first."""
    has_price = np.isfinite(close)
    latest = np.maximum.accumulate(np.where(has_price, np.arange(len(close))[:, None], -1), axis=0)
    forward_filled: Floats = np.where(latest >= 0, np.take_along_axis(close, np.maximum(latest, 0), 0), 1.0)
    return forward_filled


def _weights(values: Mapping[str, float], window: Window) -> Floats:
    return np.array([values.get(symbol, 0.0) for symbol in window.symbols])


def _by_symbol(window: Window, weights: Floats) -> dict[str, float]:
    return dict(zip(window.symbols, weights.tolist(), strict=True))
