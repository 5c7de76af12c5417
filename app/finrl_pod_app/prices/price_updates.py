"""Bring stored prices up to date: `finrl-pod data update`, and `retrain` before it trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd

from finrl_pod.data.dates import first_moment, last_moment
from finrl_pod.data.panel import first_bars
from finrl_pod.data.price_update import PriceUpdate, continue_panel
from finrl_pod.data.side_tables import (
    read_actions,
    read_membership,
    with_actions,
    with_dividends_reinvested,
    with_membership,
)
from finrl_pod.data.sources.bounded import read_bounded
from finrl_pod.data.sources.factory import open_source
from finrl_pod.data.sources.read_options import ReadOptions
from finrl_pod.data.store import Manifest, PanelVersion, Store
from finrl_pod.errors import DataError, MissingSymbols, count_text
from finrl_pod.protocols import DataSource
from finrl_pod.types import Panel
from finrl_pod_app.prices.stored_prices import QueryValue, store_prices

OVERLAP = 10  # stored bars that are fetched again, to see splits and dividends since then
MAX_VERSIONS = 260  # in a manifest, that runs can still be tested on: a year of daily updates
FORGOTTEN = np.timedelta64(30, "D")  # symbols without a bar for longer are not fetched again

ChangeValue = int | str | Sequence[str] | Mapping[str, float] | Mapping[str, str]


@dataclass(frozen=True)
class StoredUpdate:
    """Result of `update_prices`. manifest: manifest of the panel with the added bars."""

    manifest: Manifest
    update: PriceUpdate

    def document(self) -> dict[str, ChangeValue]:
        """What changed, as a JSON object."""
        update = self.update
        manifest = self.manifest
        return {
            "name": manifest.name,
            "bars": manifest.bars,
            "end": manifest.end,
            "sha256": manifest.sha256,
            "added": update.added_bars,
            "joined": update.joined_symbols,
            "ended": update.ended_symbols,
            "adjusted": update.price_factors,
            "renamed": update.new_names,
            "unchecked": update.unchecked_symbols,
        }

    def text(self) -> str:
        """What changed, a line each."""
        update = self.update
        manifest = self.manifest
        bars = f"{count_text(manifest.bars, 'bar')} up to {manifest.end}"
        lines = [f"{manifest.name}: {count_text(update.added_bars, 'new bar')}; {bars}"]
        lines += [f"{symbol}: earlier prices times {factor:.6g}" for symbol, factor in update.price_factors.items()]
        lines += [f"joined: {', '.join(update.joined_symbols)}"] if update.joined_symbols else []
        lines += [f"ended: {', '.join(update.ended_symbols)}"] if update.ended_symbols else []
        lines += [f"{name} has the prices of {previous}: renamed" for previous, name in update.new_names.items()]
        if update.unchecked_symbols:
            symbols = ", ".join(update.unchecked_symbols)
            lines.append(
                f"no stored bar is in the newer prices of {symbols}: a split or dividend in between is not seen"
            )
        return "\n".join(lines)


def update_prices(
    name: str, file: Path | None = None, *, add: Sequence[str] = (), today: date | None = None
) -> StoredUpdate:
    """Continue a stored panel with newer prices of its source, or of a file, and store it under its name.

    file: newer prices, read as the file that was imported before. add: symbols that join, of a source. Fetched panels
    end on the day before `today` (by default the current date in UTC), so that no bar is incomplete.

    Raises DataError, with the stored panel unchanged, for a built-in panel, a source that fails, and as
    `continue_panel`.
    """
    store = Store()
    store.check_room()
    manifest = store.show(name)
    if manifest.builtin:
        raise DataError(
            f"panel {name!r} is built in, so there are no newer prices; set data.name to a panel made by "
            "`finrl-pod data fetch` or `data import`, or use retrain --stored"
        )
    stored_panel = store.load(name)
    path = file or (Path(str(manifest.query["file"])) if "file" in manifest.query else None)
    if path is not None:
        if add:
            raise DataError(f"--add is for sources; {path} names its own symbols, leave it out")
        newer, query = _newer_of_file(manifest, path)
    elif "source" in manifest.query:
        newer, query = _newer_of_source(
            manifest, stored_panel, add, (today or datetime.now(UTC).date()) - timedelta(days=1)
        )
    else:
        raise DataError(
            f"panel {name!r} does not say where it came from; give newer prices to `finrl-pod data update --from`, or "
            "fetch or import it again"
        )
    update = continue_panel(stored_panel, newer)
    panel = update.panel
    if "members" in query:
        panel = with_membership(panel, read_membership(Path(str(query["members"]))))
    if store.show(name) != manifest:
        raise DataError(f"panel {name!r} was replaced while its newer prices were read; repeat the update")
    version = PanelVersion(stored_panel.sha256, len(stored_panel.times), len(stored_panel.symbols))
    begins_with_stored = first_bars(panel, version.bars, version.symbols).sha256 == version.sha256
    versions = (*manifest.earlier, version)[-MAX_VERSIONS:] if begins_with_stored else ()
    stored_prices = store_prices(panel, query, replace=True, earlier=versions)
    return StoredUpdate(stored_prices.manifest, dataclasses.replace(update, panel=panel))


def _newer_of_file(manifest: Manifest, file: Path) -> tuple[Panel, dict[str, QueryValue]]:
    """Newer prices in a file, read with the options of the import, and the query of the continued panel."""
    query = dict(manifest.query)
    options = {field.name: query[field.name] for field in dataclasses.fields(ReadOptions) if field.name in query}
    options |= {"bar": manifest.bar, "adjusted": manifest.adjusted and "dividends" not in query}
    panel = read_bounded(file, **options)
    if "actions" in query:
        actions = read_actions(Path(str(query["actions"])))
        panel = with_actions(panel, actions, query["dividends"], allow_none=True)
    elif query.get("dividends") == "reinvested":
        panel = with_dividends_reinvested(panel)
    if "file" in query:
        query["file"] = str(file.resolve())
    return panel, query


def _newer_of_source(
    manifest: Manifest, stored_panel: Panel, add: Sequence[str], last: date
) -> tuple[Panel, dict[str, QueryValue]]:
    """Newer prices of the source of a panel, from some stored bars on, and the query of the continued panel."""
    query = dict(manifest.query)
    source = open_source(str(query["source"]))
    end = max(last_moment(last.isoformat()), pd.Timestamp(stored_panel.times[-1]))
    last_bars = {
        symbol: stored_panel.times[column][-1]
        for symbol, column in zip(stored_panel.symbols, stored_panel.tradable.T, strict=True)
        if column.any()
    }
    oldest = stored_panel.times[-1] - FORGOTTEN
    symbols = dict.fromkeys([*(s for s in query["symbols"] if last_bars.get(s, stored_panel.times[-1]) > oldest), *add])
    start = stored_panel.times[-min(OVERLAP, len(stored_panel.times))]
    if set(add) - set(stored_panel.symbols):  # they join with their history
        start = first_moment(str(query["start"])).to_datetime64()
    newer = _fetch(source, tuple(symbols), (pd.Timestamp(start), end), manifest.bar, add)
    resume_times = [last_bars[symbol] for symbol in newer.symbols if last_bars.get(symbol, start) < start]
    if resume_times:  # no common bar yet
        newer = _fetch(source, newer.symbols, (pd.Timestamp(min(resume_times)), end), manifest.bar, add)
    query["symbols"] = list(dict.fromkeys([*query["symbols"], *add]))
    query["end"] = str(end.date())
    return newer, query


def _fetch(
    source: DataSource,
    symbols: tuple[str, ...],
    period: tuple[pd.Timestamp, pd.Timestamp],
    bar: str,
    required_symbols: Sequence[str],
) -> Panel:
    """Bars of the symbols that a source has. Raises MissingSymbols if it lacks one of `needed`, or all."""
    try:
        return source.fetch(symbols, *period, bar)
    except MissingSymbols as error:
        available = tuple(symbol for symbol in symbols if symbol not in error.symbols)
        if not available or set(error.symbols) & set(required_symbols):
            raise
        return _fetch(source, available, period, bar, required_symbols)
