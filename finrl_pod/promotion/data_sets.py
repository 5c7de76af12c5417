"""Data sets in the registry of trials, with the names of the store; without torch, so that lists are quick."""

from __future__ import annotations

import dataclasses
from typing import Any

from finrl_pod.data.store import Store
from finrl_pod.promotion.trial_registry import TrialRegistry


def list_data_sets(registry: TrialRegistry, data: str | None = None) -> list[dict[str, Any]]:
    """Trials and looks of each data set, latest first, with the names of the store. data: only this panel of the store.

    Data sets that are no longer in the store, or are a selection of a panel's symbols, have only their hash.
    """
    store = Store()
    names = {manifest.sha256: manifest.name for manifest in store.list() if not manifest.fault}
    selected = None if data is None else store.load(data).sha256
    known = []
    for entry in registry.data_sets():
        digest = entry["data_sha256"]
        if selected in (None, digest):
            counts = dataclasses.asdict(registry.counts(digest))
            same = [names.get(other, other) for other in entry["same_market"]]
            known.append({**entry, "name": names.get(digest), "same_market": same, "clustered": counts["clustered"]})
    return known
