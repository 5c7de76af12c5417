"""Deposits, withdrawals and changes of the capital setting, and equity without their effect.

Returns are time-weighted: a flow scales the equity before it as a split scales the prices before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

from sqlalchemy import select

from finrl_pod.paper.domain.records import ActionKind
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store

NOW = "9"  # after every time in a journal


@dataclass(frozen=True)
class CapitalFlows:
    """Capital at the start, in currency, and (time, amount) of each later flow, with ISO 8601 times in UTC."""

    start: Decimal
    flows: Sequence[tuple[str, Decimal]]

    def adjust(self, marks: Sequence[tuple[str, Decimal]]) -> list[Decimal]:
        """Return the capital at the start and the equity of all marks (time, equity), each scaled by later flows.

        A flow counts as part of the first mark from its time on.
        """
        rows = [("", self.start), *marks]
        adjusted = [rows[-1][1]]
        factor = Decimal(1)
        for (earlier, value), (at, equity) in reversed(list(pairwise(rows))):
            flow = sum((amount for time, amount in self.flows if earlier < time <= at), Decimal(0))
            if flow and equity > max(flow, Decimal(0)):
                factor *= equity / (equity - flow)
            adjusted.append(value * factor)
        return adjusted[::-1]


def flows_of(
    transfers: Iterable[tuple[str, str]], settings: Iterable[tuple[str, str]], capital: float, run: str
) -> CapitalFlows:  # fmt: skip
    """Return the flows of a run. transfers: (time, amount). settings: (time, JSON of the settings), oldest first.

    capital: at the start if the journal has no settings. run: a strategy of several, else the account.
    """
    capitals = [(at, _capital_of(content, run)) for at, content in settings]
    changes = [(at, value - previous) for (_, previous), (at, value) in pairwise(capitals)]
    flows = [*changes, *((at, Decimal(amount)) for at, amount in transfers)]
    start = capitals[0][1] if capitals else Decimal(str(capital))
    return CapitalFlows(start, [(at, amount) for at, amount in flows if amount])


def capital_flows(store: Store, capital: float, run: str = "") -> CapitalFlows:
    """Return the flows of an account, or those of one of several strategies that share it; arguments as above."""
    actions = schema.corporate_actions
    parts = schema.action_parts
    query = select(actions.c.at, actions.c.cash).where(actions.c.kind == ActionKind.TRANSFER)
    if run:
        query = select(actions.c.at, parts.c.cash).join_from(parts, actions)
        query = query.where(actions.c.kind == ActionKind.TRANSFER, parts.c.run == run)
    settings = [(row.at, row.content) for row in store.rows(schema.settings)]
    return flows_of([(row.at, row.cash) for row in store.query(query)], settings, capital, run)


def _capital_of(content: str, run: str) -> Decimal:
    settings = json.loads(content)
    shares = {f"{settings['name']}/{strategy['name']}": strategy["share"] for strategy in settings["strategies"]}
    return Decimal(str(round(settings["capital"] * shares.get(run, 1.0), 2)))
