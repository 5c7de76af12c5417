"""Prices and years that were used to build finrl_pod.

Earlier versions were compared on the test years of the built-in panels, and the default settings were chosen with the
help of the sample's validation years. A user's first look at these test years is therefore not the first.
"""

from __future__ import annotations

import functools

from finrl_pod.data.store import BUILT_IN, Store
from finrl_pod.prices import Panel
from finrl_pod.promotion.dataset_fingerprint import (
    MIN_SHARED_SYMBOLS,
    DatasetFingerprint,
    dataset_fingerprint,
    same_market,
)
from finrl_pod.settings.run import BUILT_IN_SPLITS

SUBJECT = "development of finrl_pod"  # of the look in the registry
DATE = "2026-11-26T00:00:00+00:00"  # when the default settings were chosen


def is_demonstration(panel: Panel) -> bool:
    """Whether prices are those of a built-in panel, or of some of its symbols."""
    return panel.name in BUILT_IN and set(panel.symbols) <= set(Store().show(panel.name).symbols)


def development_period(panel: Panel, first: str, last: str) -> tuple[str, str] | None:
    """First and last date of the test years that were looked at to build finrl_pod; None if a period misses them.

    first, last: ISO text of the period on the prices of `panel`, which are those of a built-in panel or show the same
    market.
    """
    for name in BUILT_IN:
        begin, end = BUILT_IN_SPLITS[name].test
        if first[:10] <= end and last[:10] >= begin and _is_market_of(panel, name):
            return begin, end
    return None


def _is_market_of(panel: Panel, name: str) -> bool:
    if panel.name == name and is_demonstration(panel):
        return True
    symbols = {symbol.upper() for symbol in panel.symbols}
    known = {symbol.upper() for symbol in Store().show(name).symbols}
    if len(symbols & known) < MIN_SHARED_SYMBOLS * min(len(symbols), len(known)):
        return False
    return same_market(dataset_fingerprint(panel), _built_in_fingerprint(name))


@functools.cache
def _built_in_fingerprint(name: str) -> DatasetFingerprint:
    return dataset_fingerprint(BUILT_IN[name]())
