"""Attribution of the difference between an account and its backtest to causes, exact to the cent.

For each cause the gap to the backtest is kept as shares and cash of each symbol. Orders and fills that differ change
the gap of their cause, and later prices, splits and dividends act on it as on any other position. A rebalance moves
the shares of every cause to its part of the target, since targets are shares of equity. The value of all gaps together
is the difference; what the journal does not explain is `unexplained`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

import numpy as np

from finrl_pod.evaluate.paper_backtest import PaperBacktest, PaperOrder
from finrl_pod.market.orders import SizingRules, limited_weights
from finrl_pod.paper.domain.intents import IntentState
from finrl_pod.types import Floats

CLOSING_SHARE = 0.002  # of an order; sizes may differ by it because both accounts are not of the same equity
FOLLOWS = 2.0  # times the difference of an order: a larger difference in shares explains the decision on that order
SMALLEST = 1e-6  # shares
FRACTION = 1e-9


class Cause(StrEnum):
    """Why an account differs from its backtest.

    DIVIDENDS: not paid into the account. FILL_PRICE: price and fees of fills against the auction price and the modelled
    cost. LIMITS: orders cut or withheld by limits, a halt, a command or for lack of buying power. MISSED_FILLS: orders
    that were not sent, or not filled. ROUNDING: whole shares. UNEXPLAINED: anything else.
    """

    DIVIDENDS = "dividends"
    FILL_PRICE = "fill_price"
    LIMITS = "limits"
    MISSED_FILLS = "missed_fills"
    ROUNDING = "rounding"
    UNEXPLAINED = "unexplained"


CAUSES = tuple(Cause)


@dataclass(frozen=True)
class AccountFill:
    """An own fill. index: first mark that includes it. quantity: signed. by_decision: False for a flatten."""

    index: int
    symbol: str
    quantity: float
    price: float
    fee: float
    by_decision: bool


@dataclass(frozen=True)
class AccountIntent:
    """An intent of a decision. quantity: signed. sent_quantity: signed shares of its first order, 0 without one."""

    bar: str
    symbol: str
    quantity: float
    sent_quantity: float
    state: str


@dataclass(frozen=True)
class AccountDecision:
    """weights: weights by symbol or None. is_failed: no decision could be taken. skip_reasons: reasons by symbol."""

    bar: str
    weights: Mapping[str, float] | None
    is_failed: bool
    skip_reasons: Mapping[str, str]


@dataclass(frozen=True)
class AccountAction:
    """A change of own shares and cash that is no fill. index: index of the first mark that includes it.

    external: own shares sold by other clients, acknowledged by an operator.
    """

    index: int
    symbol: str
    shares: float
    cash: float
    external: bool


@dataclass(frozen=True)
class AccountHistory:
    """What a journal says about one strategy. sessions: ISO dates of the marks. equity: equity at the marks."""

    sessions: Sequence[str]
    equity: Sequence[Decimal]
    fills: Sequence[AccountFill]
    intents: Sequence[AccountIntent]
    decisions: Sequence[AccountDecision]
    actions: Sequence[AccountAction]


@dataclass(frozen=True)
class DailyTerms:
    """Prices and corporate actions of the backtest, [T, N] over the panel bars, as `TradedPrices` has them."""

    days: Sequence[str]
    symbols: Sequence[str]
    close: Floats
    fills: Floats
    splits: Floats
    dividends: Floats


@dataclass(frozen=True, eq=False)
class Attribution:
    """Currency by cause; the causes add up to the account equity less the backtest equity at each common session.

    by_session: [L] of all symbols. by_symbol: values at the last session. difference: value at the last session.
    """

    sessions: tuple[str, ...]
    by_session: Mapping[Cause, Floats]
    by_symbol: Mapping[str, Mapping[Cause, float]]
    difference: float

    @property
    def total(self) -> dict[str, float]:
        """Currency by cause at the last session."""
        return {cause.value: float(values[-1]) for cause, values in self.by_session.items()}


def attribute(history: AccountHistory, backtest: PaperBacktest, terms: DailyTerms, rules: SizingRules) -> Attribution:
    """Attribute the difference at each mark that the backtest has too; it starts at the first one."""
    days = map(str, backtest.result.times.astype("datetime64[D]"))
    backtest_equity = dict(zip(days, backtest.equity, strict=True))
    gaps = _Gaps(history, backtest, terms, rules)
    sessions: list[str] = []
    rows: list[list[float]] = []
    for index, session in enumerate(history.sessions):
        if session not in backtest_equity:
            continue
        if sessions:
            gaps.advance(sessions[-1], session, index)
        values = gaps.values(session)
        values[CAUSES.index(Cause.UNEXPLAINED)] += float(history.equity[index] - backtest_equity[session]) - sum(values)
        sessions.append(session)
        rows.append(values)
    table = np.array(rows)
    by_session = {cause: table[:, i] for i, cause in enumerate(CAUSES)}
    return Attribution(tuple(sessions), by_session, gaps.by_symbol(sessions[-1]), float(table[-1].sum()))


@dataclass
class _Gap:
    """Shares and cash [N] that the account has more than the backtest, for one cause."""

    shares: Floats
    cash: Floats


@dataclass
class _Flow:
    """Trades of one symbol between two marks."""

    planned_quantity: float = 0.0
    shares: float = 0.0
    withheld: float = 0.0
    cash: float = 0.0
    is_commanded: float = 0.0
    price: float = float("nan")


@dataclass
class _Gaps:
    history: AccountHistory
    backtest: PaperBacktest
    terms: DailyTerms
    rules: SizingRules
    gaps: dict[Cause, _Gap] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.terms.symbols)
        self.gaps = {cause: _Gap(np.zeros(n), np.zeros(n)) for cause in CAUSES}
        self._shares_held = np.zeros(n)  # of the backtest
        self._bars = {day: t for t, day in enumerate(self.terms.days)}
        self._columns = {symbol: i for i, symbol in enumerate(self.terms.symbols)}
        self._intents: dict[str, list[AccountIntent]] = defaultdict(list)
        for intent in self.history.intents:
            self._intents[intent.bar].append(intent)
        self._model_orders: dict[str, list[PaperOrder]] = defaultdict(list)
        for order in self.backtest.orders:
            self._model_orders[str(order.bar.astype("datetime64[D]"))].append(order)

    # ------------------------------------------------------------------ values

    def values(self, session: str) -> list[float]:
        """Value of the gap of each cause at the closes of a session."""
        return [float(self._values(cause, session).sum()) for cause in CAUSES]

    def by_symbol(self, session: str) -> dict[str, dict[Cause, float]]:
        """Value of the gap of each cause by symbol."""
        table = {cause: self._values(cause, session) for cause in CAUSES}
        rows = {s: {cause: float(table[cause][i]) for cause in CAUSES} for s, i in self._columns.items()}
        return {s: row for s, row in rows.items() if any(abs(value) >= 0.005 for value in row.values())}

    def _values(self, cause: Cause, session: str) -> Floats:
        gap = self.gaps[cause]
        values: Floats = gap.cash + gap.shares * self.terms.close[self._bars[session]]
        return values

    # ------------------------------------------------------------------ from one mark to the next

    def advance(self, previous_session: str, session: str, index: int) -> None:
        """Add the trades and corporate actions between two marks. index: index of the later one. It has all fills."""
        first = self._bars[previous_session]
        last = self._bars[session]
        for t in range(first + 1, last + 1):
            bar = self.terms.days[t - 1]
            decisions = [d for d in self.history.decisions if d.bar == bar]
            targets = self._targets(decisions, bar)
            self._pay_dividends(t)
            model = self._model_flows(bar)
            account = self._account_flows(bar, index if t == last else None)
            for symbol in sorted({*model, *account} & set(self.terms.symbols)):
                n = self._columns[symbol]
                reference = self._reference_price(model[symbol], account[symbol], t, n)
                self._trade(n, model[symbol], account[symbol], reference, decisions, targets, t - 1)
            self._shares_held += np.array([model[symbol].shares for symbol in self.terms.symbols])
            self._split(t)
        self._account_actions(first, last, index)

    def _model_flows(self, bar: str) -> dict[str, _Flow]:
        flows: dict[str, _Flow] = defaultdict(_Flow)
        cost = float(self.rules.cost_rate)
        for order in self._model_orders.get(bar, ()):
            flow = flows[order.symbol]
            shares = float(order.filled)
            flow.planned_quantity += float(order.quantity)
            if order.price is not None:
                flow.shares = flow.shares + shares
                flow.price = float(order.price)
                flow.cash -= shares * flow.price + abs(shares) * flow.price * cost
        return flows

    def _account_flows(self, bar: str, index: int | None) -> dict[str, _Flow]:
        flows: dict[str, _Flow] = defaultdict(_Flow)
        for intent in self._intents.get(bar, ()):
            flow = flows[intent.symbol]
            flow.planned_quantity += intent.quantity
            if intent.state == IntentState.WITHHELD:
                flow.withheld += intent.quantity
            elif intent.sent_quantity:
                flow.withheld += intent.quantity - intent.sent_quantity
        for fill in self.history.fills if index is not None else ():
            if fill.index == index:
                flow = flows[fill.symbol]
                flow.cash -= fill.quantity * fill.price + fill.fee
                flow.price = fill.price
                if fill.by_decision:
                    flow.shares += fill.quantity
                else:
                    flow.is_commanded += fill.quantity
        return flows

    def _reference_price(self, model: _Flow, account: _Flow, t: int, n: int) -> float:
        """The backtest fill price; without one the auction price, then the price of the account."""
        candidates = (model.price, float(self.terms.fills[t, n]), account.price)
        return next((price for price in candidates if np.isfinite(price)), 0.0)

    def _trade(
        self, n: int, model: _Flow, account: _Flow, price: float, decisions: Sequence[AccountDecision],
        targets: Mapping[Cause, Floats] | None, bar: int,
    ) -> None:  # fmt: skip
        """Split the difference of two flows over the causes."""
        planned_quantity = account.planned_quantity - model.planned_quantity
        unfilled_quantity = account.shares - account.planned_quantity
        limits = -account.withheld if abs(unfilled_quantity) >= SMALLEST else 0.0
        shares_by_cause = dict.fromkeys(CAUSES, 0.0)
        shares_by_cause[Cause.LIMITS] = limits + account.is_commanded
        shares_by_cause[Cause.MISSED_FILLS] = unfilled_quantity - limits + model.planned_quantity - model.shares
        symbol = self.terms.symbols[n]
        skip_reasons = {s: reason for d in decisions for s, reason in d.skip_reasons.items()}
        if not decisions or any(d.is_failed for d in decisions):
            shares_by_cause[Cause.MISSED_FILLS] += planned_quantity
        elif symbol in skip_reasons:
            shares_by_cause[_skip_cause([skip_reasons[symbol]])] += planned_quantity
        else:
            parts = self._propagate(n, planned_quantity, targets, bar, model.planned_quantity)
            if skip_reasons:  # the money of positions that could not be sold is missing elsewhere
                parts[_skip_cause(skip_reasons.values())] += parts[Cause.UNEXPLAINED]
                parts[Cause.UNEXPLAINED] = 0.0
            for cause, shares in parts.items():
                shares_by_cause[cause] += shares
        for cause, shares in shares_by_cause.items():
            self.gaps[cause].shares[n] += shares
            self.gaps[cause].cash[n] -= shares * price
        flow = account.shares + account.is_commanded - model.shares
        self.gaps[Cause.FILL_PRICE].cash[n] += account.cash - model.cash + flow * price

    def _propagate(
        self, n: int, planned_quantity: float, targets: Mapping[Cause, Floats] | None, bar: int, size: float
    ) -> dict[Cause, float]:  # fmt: skip
        """Split a difference of planned orders over the causes of earlier differences.

        After a rebalance each cause holds its part of the target; otherwise an order closes what was missed before.
        The rest is rounding, or unexplained if it is larger than rounding can be.
        """
        shares_by_cause = dict.fromkeys(CAUSES, 0.0)
        if targets is not None:
            for cause in CAUSES:
                shares_by_cause[cause] = float(targets[cause][n] - self.gaps[cause].shares[n])
        else:
            left = planned_quantity
            for cause in (Cause.MISSED_FILLS, Cause.LIMITS):
                open_ = -float(self.gaps[cause].shares[n])
                closed_quantity = max(min(left, open_), 0.0) if open_ > 0 else min(max(left, open_), 0.0)
                shares_by_cause[cause] = closed_quantity
                left = left - closed_quantity
        remainder = planned_quantity - sum(shares_by_cause.values())
        close = float(self.terms.close[bar, n])
        step = FRACTION if self.rules.fractional else 1.0
        rounding = 2 * step + (float(self.rules.min_value) / close if close > 0 else 0.0) + CLOSING_SHARE * abs(size)
        cause_of_rest = Cause.ROUNDING if abs(remainder) <= rounding else self._cause_of_rest(n, remainder)
        shares_by_cause[cause_of_rest] += remainder
        return shares_by_cause

    def _cause_of_rest(self, n: int, remainder: float) -> Cause:
        """The cause of a far larger earlier difference in the symbol that the decision follows from."""
        largest = max(CAUSES, key=lambda cause: abs(self.gaps[cause].shares[n]))
        return largest if abs(self.gaps[largest].shares[n]) > FOLLOWS * abs(remainder) else Cause.UNEXPLAINED

    def _targets(self, decisions: Sequence[AccountDecision], previous_session: str) -> dict[Cause, Floats] | None:
        """Shares [N] that the value of each cause buys at the target weights of a rebalance, None without one."""
        weights = next((d.weights for d in reversed(decisions) if d.weights is not None), None)
        if weights is None:
            return None
        weights_within_limits = np.array(limited_weights([weights.get(s, 0.0) for s in self.terms.symbols], self.rules))
        close = self.terms.close[self._bars[previous_session]]
        per_unit = weights_within_limits * float(1 - self.rules.cash_buffer) / np.where(close > 0, close, np.inf)
        values = zip(CAUSES, self.values(previous_session), strict=True)
        return {cause: per_unit * value for cause, value in values}

    def _pay_dividends(self, t: int) -> None:
        """Let the backtest dividends of a session act on the gaps; what the account was credited follows later."""
        dividends = self.terms.dividends[t]
        shares_held = self._shares_held.copy()
        for gap in self.gaps.values():
            gap.cash += gap.shares * dividends
            shares_held += gap.shares
        self.gaps[Cause.DIVIDENDS].cash -= shares_held * dividends

    def _split(self, t: int) -> None:
        for gap in self.gaps.values():
            gap.shares *= self.terms.splits[t]
        self._shares_held *= self.terms.splits[t]

    def _account_actions(self, first: int, last: int, index: int) -> None:
        """Add the account cash from dividends, and the shares that splits did not explain."""
        splits = np.prod(self.terms.splits[first + 1 : last + 1], axis=0)
        for action in self.history.actions:
            n = self._columns.get(action.symbol)
            if action.index != index or n is None:
                continue
            self.gaps[Cause.LIMITS if action.external else Cause.DIVIDENDS].cash[n] += action.cash
            if action.external:
                self.gaps[Cause.LIMITS].shares[n] += action.shares
                continue
            shares_held = self._shares_held[n] + sum(gap.shares[n] for gap in self.gaps.values())
            unexplained_shares = action.shares - shares_held * (1 - 1 / splits[n])
            small = abs(unexplained_shares) < SMALLEST * max(abs(shares_held), 1.0)
            self.gaps[Cause.ROUNDING if small else Cause.UNEXPLAINED].shares[n] += unexplained_shares


def _skip_cause(reasons: Iterable[str]) -> Cause:
    return Cause.LIMITS if any("halted" in reason for reason in reasons) else Cause.MISSED_FILLS
