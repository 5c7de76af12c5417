"""Equity without the effect of deposits, withdrawals and changes of the allocated capital.

Returns are time-weighted, as in backtests (`finrl_pod.evaluate.metrics.flow_factors`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import pairwise

from finrl_pod.errors import ConfigError
from finrl_pod.evaluate.metrics import flow_factors
from finrl_pod.paper.settings import allocations, unpack

NOW = "9"  # after every time in a journal
Amounts = Sequence[tuple[str, Decimal]]  # (ISO 8601 time in UTC, currency)


def flow_adjusted(capital: float, marks: Amounts, flows: Amounts) -> list[Decimal]:
    """Return the capital at the start and the equity of all marks, each scaled by later flows.

    A flow counts as part of the first mark from its time on.
    """
    rows = [("", Decimal(str(capital))), *marks]
    values = [value for _, value in rows]
    flow_amounts = [
        sum(amount for time, amount in flows if earlier < time <= at) for (earlier, _), (at, _) in pairwise(rows)
    ]
    factors = flow_factors(list(map(float, values)), [0.0, *map(float, flow_amounts)])
    return [value * Decimal(factor) for value, factor in zip(values, factors.tolist(), strict=True)]


def recorded_capital(settings: Iterable[tuple[str, str]], run: str = "") -> list[tuple[str, Decimal]]:
    """Return time and capital of each row of the settings (time, JSON), of an account or one of its strategies.

    Rows without the strategy and rows of another version are left out.
    """
    capitals = []
    for time, content in settings:
        with contextlib.suppress(ConfigError):
            config = unpack(content)
            configs = [config] if not run else [c for c in allocations(config) if c.name == run]
            capitals += [(time, Decimal(str(c.capital))) for c in configs]
    return capitals


def capital_changes(capitals: Amounts) -> list[tuple[str, Decimal]]:
    """Return time and amount of the changes of the capital."""
    pairs = pairwise(capitals)
    return [(time, capital - last_capital) for (_, last_capital), (time, capital) in pairs if capital != last_capital]


def starting_capital(capitals: Amounts, configured: float) -> float:
    """Return the capital at the start of an account, the one of the config if none is recorded."""
    return float(capitals[0][1]) if capitals else configured
