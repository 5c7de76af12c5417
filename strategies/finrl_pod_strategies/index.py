"""The index as a market of one asset, so that the same accounting and the same costs apply to it."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from finrl_pod.data.tensor import Fill, build_market
from finrl_pod.errors import InputError
from finrl_pod.market.costs import HalfSpread
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.types import MarketTensor, Panel


def index_panel(panel: Panel) -> Panel:
    """A panel whose one symbol is the benchmark: same bars, closes only. Raises InputError without a benchmark."""
    benchmark = panel.benchmark
    if benchmark is None:
        raise InputError(
            f"the panel {panel.name or panel.source or 'given'} has no index; leave the index baseline out"
        )
    close = np.asarray(benchmark.close, dtype=np.float64)[:, None].copy()
    flaws = (f"{benchmark.name} is a price index: its dividends are left out",) if benchmark.price_only else ()
    return Panel(
        times=panel.times,
        symbols=(benchmark.name,),
        close=close,
        tradable=np.isfinite(close),
        adjusted=not benchmark.price_only,
        bar=panel.bar,
        name=benchmark.name,
        source=panel.source,
        flaws=flaws,
    )


def index_market(panel: Panel, fill: str = "next") -> tuple[Panel, MarketTensor]:
    """The benchmark of `panel` as (panel, market) of one asset, without features.

    An index has no open here: with fill="next" it fills at the next close, also where the stocks fill at an open.
    """
    alone = index_panel(panel)
    return alone, build_market(alone, (), (0, len(alone.times) - 1), cast(Fill, fill))


def index_rules(rules: ExecutionRules) -> ExecutionRules:
    """What the index pays: an index level has neither volume nor a number of shares, so only proportional costs,
    interest and delay are left of the frictions."""
    frictions = rules.frictions
    if frictions is None:
        return rules
    spreads = tuple(model for model in frictions.costs if isinstance(model, HalfSpread))
    return replace(rules, frictions=replace(frictions, costs=spreads, participation=0.0))
