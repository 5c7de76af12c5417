"""Newer prices for a stored panel: its own query to its source again, up to the last complete session."""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime, timedelta

from finrl_pod.data.dates import first_moment, last_moment
from finrl_pod.data.manifest import Manifest
from finrl_pod.data.sources import open_source
from finrl_pod.data.store import Store
from finrl_pod.errors import DataError
from finrl_pod.types import Panel
from finrl_pod_app.prices.data_import import import_again


def refresh_panel(name: str, today: date | None = None) -> Manifest:
    """Fetch or import a stored panel again and store it under its name; returns its manifest.

    Fetched panels end on the day before `today` (by default the current date in UTC), so that no bar is incomplete.
    Raises DataError, with the stored panel unchanged, for a built-in panel, a source that fails, and prices that lack
    a symbol or end before those in the store.
    """
    store = Store()
    old = store.show(name)
    if old.builtin:
        raise DataError(
            f"panel {name!r} is built in, so there are no newer prices; set data.name to a panel made by "
            "`finrl-pod data fetch` or `data import`, or use --stored"
        )
    panel, query = _read_again(old, (today or datetime.now(UTC).date()) - timedelta(days=1))
    missing = sorted(set(old.symbols) - set(panel.symbols))
    if missing:
        raise DataError(f"the newer prices of {name!r} lack {missing[0]}, so the stored ones are kept")
    if str(panel.times[-1].astype("datetime64[D]")) < old.end[:10]:
        raise DataError(
            f"the newer prices of {name!r} end on {panel.times[-1].astype('datetime64[D]')}, before the stored ones, "
            f"which end on {old.end}: those are kept"
        )
    return store.save(dataclasses.replace(panel, name=name), query)


def _read_again(old: Manifest, last: date) -> tuple[Panel, dict[str, object]]:
    """Prices by the query of a manifest, and the query with its new end."""
    query = dict(old.query)
    if "file" in query:
        return import_again(old)
    if "source" not in query:
        raise DataError(
            f"panel {old.name!r} does not say where it came from; fetch or import it again, or use --stored"
        )
    query["end"] = last.isoformat()
    span = first_moment(str(query["start"]), "the start"), last_moment(last.isoformat(), "the end")
    return open_source(str(query["source"])).fetch(tuple(query["symbols"]), *span, old.bar), query
