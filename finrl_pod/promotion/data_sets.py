"""Data sets in the registry of trials, with the names of the store; without torch, so that lists are quick."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from finrl_pod.data.store import Store
from finrl_pod.promotion.trial_registry import TrialRegistry

SHORT_HASH = 12  # digits in labels


def list_data_sets(registry: TrialRegistry, data: str | None = None) -> list[dict[str, Any]]:
    """Trials and looks of each data set, latest first, with the names of the store. data: only this panel of the store.

    "names": all that the store has for these prices; "name": the one that they were used under, if it is among them,
    else the first, or None. Data sets that are no longer in the store, or are a selection of a panel's symbols, have
    only "recorded_names", those that they were used under. "label" tells data sets apart in lists.
    """
    store = Store()
    names: dict[str, list[str]] = {}
    for manifest in store.list():
        if not manifest.fault:
            names.setdefault(manifest.sha256, []).append(manifest.name)
    selected = None if data is None else store.load(data).sha256
    known, entries = [], registry.data_sets()
    labels = {entry["data_sha256"]: _label(entry, names.get(entry["data_sha256"], [])) for entry in entries}
    for entry in entries:
        digest = entry["data_sha256"]
        if selected in (None, digest):
            counts = dataclasses.asdict(registry.counts(digest))
            same = [labels.get(other, ", ".join(names.get(other, [])) or other) for other in entry["same_market"]]
            stored = names.get(digest, [])
            used = [name for name in entry["recorded_names"] if name in stored]
            known.append(
                {
                    **entry,
                    "name": next(iter((*used, *stored)), None),
                    "names": stored,
                    "label": labels[digest],
                    "same_market": same,
                    "clustered": counts["clustered"],
                }
            )
    return known


def _label(entry: Mapping[str, Any], stored: Sequence[str]) -> str:
    """The names of the store, else the recorded ones with the start of the hash, else the start of the hash."""
    digest = str(entry["data_sha256"])[:SHORT_HASH]
    recorded = ", ".join(entry["recorded_names"])
    return ", ".join(stored) or (f"{recorded} [{digest}]" if recorded else digest)
