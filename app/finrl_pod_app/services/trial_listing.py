"""The register of trials as people read it: with the names that data sets have in the store."""

from __future__ import annotations

import dataclasses
from typing import Any

from finrl_pod.data.store import Store
from finrl_pod.promotion.trial_registry import TrialRegistry


def register(registry: TrialRegistry, data: str | None = None) -> list[dict[str, Any]]:
    """What was tried on each data set, the latest first; `data`: on one panel of the store alone.

    Data that have no name in the store any more, or are a choice of a panel's symbols, keep their hash alone, among the
    kin of others too.
    """
    store = Store()
    names = {manifest.sha256: manifest.name for manifest in store.list() if not manifest.fault}
    wanted = None if data is None else store.load(data).sha256
    known = []
    for entry in registry.data_sets():
        digest = entry["data_sha256"]
        if wanted in (None, digest):
            counts = dataclasses.asdict(registry.counts(digest))
            kin = [names.get(other, other) for other in entry["kin"]]
            known.append({**entry, "name": names.get(digest), "kin": kin, "clustered": counts["clustered"]})
    return known
