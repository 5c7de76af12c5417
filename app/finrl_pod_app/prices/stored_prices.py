"""Store prices under a name without losing others, and find the prices of a run by their content."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from finrl_pod.data.store import Manifest, Store
from finrl_pod.errors import DataError, SetupError
from finrl_pod.promotion.trial_registry import SHORT_HASH, TrialRegistry
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import Panel
from finrl_pod_app.prices.data_import import QueryValue
from finrl_pod_app.prices.panels import load_panel

Status = Literal["stored", "unchanged", "replaced"]
SHOWN_RUNS = 3
_RUNS = ("champion of ", "walk-forward of ")  # looks that runs make


@dataclasses.dataclass(frozen=True)
class StoredPrices:
    """Result of `store_prices`. replaced_sha256: hash of the prices that were there before, if they were others."""

    manifest: Manifest
    status: Status
    replaced_sha256: str | None = None


def store_prices(panel: Panel, query: Mapping[str, QueryValue], *, replace: bool = False) -> StoredPrices:
    """Store under `panel.name`.

    Raises DataError if that has other prices, unless `replace`, and as `Store.save`.
    """
    store = Store()
    manifest = existing(store, panel.name)
    if manifest is not None and manifest.sha256 == panel.sha256:
        is_same = dataclasses.replace(manifest, query=dict(query), source=panel.source, flaws=panel.flaws) == manifest
        return StoredPrices(manifest if is_same else store.save(panel, query), "unchanged")
    if not replace:
        check_free(store, panel.name)
    new_manifest = store.save(panel, query)
    return StoredPrices(
        new_manifest, "stored" if manifest is None else "replaced", None if manifest is None else manifest.sha256
    )


def check_free(store: Store, name: str) -> None:
    """Raises DataError if a panel of that name would be replaced."""
    store.check_name(name)
    if not store.exists(name):
        return
    manifest = existing(store, name)
    contents = (
        "a damaged panel"
        if manifest is None
        else f"other prices ({manifest.bars:,} bars, {manifest.start} to {manifest.end})"
    )
    raise DataError(f"{name!r} has {contents} already: choose another --name, or pass --replace")


def existing(store: Store, name: str) -> Manifest | None:
    """The manifest of a stored panel; None without one that can be read."""
    store.check_name(name)
    with contextlib.suppress(DataError):
        return store.show(name) if store.exists(name) else None
    return None


def names_of(store: Store, sha256: str) -> list[str]:
    """Names of the stored panels with these prices."""
    return [manifest.name for manifest in store.list() if manifest.sha256 == sha256 and not manifest.fault]


def runs_on(sha256: str) -> list[str]:
    """Runs whose champions were tested on these prices, in words, as the registry of looks knows them."""
    try:
        looks = TrialRegistry().descriptions(sha256)
    except SetupError:
        return []
    return [description for description in looks if description.startswith(_RUNS)]


def consequences(sha256: str) -> str:
    """What it means for runs that prices are no longer stored under their name, in one or two sentences."""
    if names := names_of(Store(), sha256):
        return f"They are still stored as {names[0]}, where runs made on them find them."
    runs = runs_on(sha256)
    remainder = f" and {len(runs) - SHOWN_RUNS} more" if len(runs) > SHOWN_RUNS else ""
    sentence = f"Made on them: {'; '.join(runs[:SHOWN_RUNS])}{remainder}. " if runs else ""
    return f"{sentence}To backtest or audit runs made on them, import the same prices again, under any name."


@dataclasses.dataclass(frozen=True)
class RunPrices:
    """The prices of a run. stored_as: a name under which the store has them, None if it no longer does."""

    sha256: str
    stored_as: str | None
    sentence: str


def run_prices(path: Path) -> RunPrices | None:
    """Whether the prices of a finished run are still stored, and what follows; None for a folder that is no run.

    Raises RunError as `RunDirectory.open`.
    """
    if not RunDirectory.is_run(path):
        return None
    run = RunDirectory.open(path)
    subject = f"The prices of this run (sha256 {run.data_sha256[:SHORT_HASH]})"
    try:
        name = load_run_panel(run.config, run.data_sha256, path).name
    except DataError:
        note = f"; {run.config.data.name} has others now" if Store().exists(run.config.data.name) else ""
        sentence = (
            f"{subject} are no longer stored{note}: the verdict stands, but its champion cannot be backtested or "
            "audited until the same prices are imported again, under any name."
        )
        return RunPrices(run.data_sha256, None, sentence)
    return RunPrices(run.data_sha256, name, f"{subject} are stored as {name}: backtest and audit use them.")


def panel_to_resume(config: RunConfig, folder: Path) -> Panel:
    """The prices with which a run is resumed: the prices of the run, or of the config if the run has another config.

    Raises as `load_run_panel`.
    """
    run = RunDirectory(folder)
    return load_run_panel(config, run.data_sha256, folder) if run.is_of(config) else load_panel(config)


def load_run_panel(config: RunConfig, sha256: str, run: Path, *, fix: str = "") -> Panel:
    """The prices that a run was made on, under the name in its config or any other name.

    sha256: hash of the panel of the run. fix: alternative to name in the message. Raises DataError if the store has
    neither, and as `load_panel`.
    """
    name = config.data.name
    store = Store()
    missing = not store.exists(name)
    if not missing and (panel := load_panel(config)).sha256 == sha256:
        return panel
    for manifest in store.list():
        if manifest.name == name or manifest.fault:
            continue
        # With a selection of symbols only the selected panel has the hash of the run.
        if manifest.sha256 == sha256 or set(config.data.symbols or (None,)) <= set(manifest.symbols):
            renamed_config = dataclasses.replace(config, data=dataclasses.replace(config.data, name=manifest.name))
            if (panel := load_panel(renamed_config)).sha256 == sha256:
                return panel
    if missing:
        fault = f"panel {name!r}, on which the run in {run} was made, is no longer stored: import its prices"
    else:
        fault = f"the prices of {name!r} have changed since the run in {run}: import those that it was made on"
    raise DataError(f"{fault} again, under any name{fix}")
