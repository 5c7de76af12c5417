"""Equity without the effect of deposits and withdrawals.

Returns are time-weighted: a flow scales the equity before it as a split scales the prices before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise

NOW = "9"  # after every time in a journal
Amounts = Sequence[tuple[str, Decimal]]  # (ISO 8601 time in UTC, currency)


def flow_adjusted(capital: float, marks: Amounts, flows: Amounts) -> list[Decimal]:
    """Return the capital at the start and the equity of all marks, each scaled by later flows.

    A flow counts as part of the first mark from its time on.
    """
    rows = [("", Decimal(str(capital))), *marks]
    adjusted = [rows[-1][1]]
    factor = Decimal(1)
    for (earlier, value), (at, equity) in reversed(list(pairwise(rows))):
        flow = sum((amount for time, amount in flows if earlier < time <= at), Decimal(0))
        if flow and equity > max(flow, Decimal(0)):
            factor *= equity / (equity - flow)
        adjusted.append(value * factor)
    return adjusted[::-1]
