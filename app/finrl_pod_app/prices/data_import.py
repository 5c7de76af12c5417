"""Import prices from a file with its tables of corporate actions and memberships, and renew stored prices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

from finrl_pod.data.dates import first_moment, last_moment
from finrl_pod.data.side_tables import Dividends, read_actions, read_membership, with_actions, with_membership
from finrl_pod.data.sources.bounded import ReadLimits, read_bounded
from finrl_pod.data.sources.factory import open_source
from finrl_pod.data.sources.files import ReadOptions
from finrl_pod.data.store import Manifest, Store
from finrl_pod.errors import DataError
from finrl_pod.types import Panel

QueryValue = str | bool | int | float | Sequence[str] | None  # of a query in a manifest


def import_prices(
    file: Path,
    *,
    limits: ReadLimits | None = None,
    adjusted: bool | None = None,
    members: Path | None = None,
    actions: Path | None = None,
    dividends: Dividends = "cash",
    **options: Any,
) -> tuple[Panel, dict[str, QueryValue]]:
    """Read a file, and the query that repeats it, for the manifest of the panel.

    adjusted: whether the prices in the file are adjusted for splits and dividends; None: yes, unless there are
    `actions`. members, actions: CSV tables. dividends: how dividends of the actions are paid. options: the others of
    `ReadOptions`. Raises DataError as `read_bounded` and the readers of the tables, and for actions of adjusted prices.
    """
    if dividends not in get_args(Dividends):
        raise DataError(f"--dividends must be {' or '.join(get_args(Dividends))}, got {dividends!r}")
    if actions is not None and adjusted:
        raise DataError("corporate actions adjust prices as traded; leave out --adjusted, or --actions")
    if actions is None and dividends != "cash":
        raise DataError("--dividends is for a table of corporate actions; give the table with --actions")
    is_adjusted = actions is None if adjusted is None else adjusted
    panel = read_bounded(file, limits, adjusted=is_adjusted, **options)
    query = {"file": str(file.resolve()), **options}
    if actions is not None:
        panel = with_actions(panel, read_actions(actions), dividends)
        query |= {"actions": str(actions.resolve()), "dividends": dividends}
    if members is not None:
        panel = with_membership(panel, read_membership(members))
        query["members"] = str(members.resolve())
    return panel, query


def import_again(manifest: Manifest) -> tuple[Panel, dict[str, QueryValue]]:
    """Repeat the import of a stored panel, by the query in its manifest. Raises DataError as `import_prices`."""
    query = manifest.query
    names = {field.name for field in dataclasses.fields(ReadOptions)} - {"adjusted"}
    options = {"bar": manifest.bar, **{name: query[name] for name in names if name in query}}
    options |= {name: Path(str(query[name])) for name in ("members", "actions") if name in query}
    if "actions" in query:
        options["dividends"] = query["dividends"]
    else:
        options["adjusted"] = manifest.adjusted
    return import_prices(Path(str(query["file"])), **options)


def refresh_panel(name: str, today: date | None = None) -> Manifest:
    """Fetch or import a stored panel again and store it under its name; returns its manifest.

    Fetched panels end on the day before `today` (by default the current date in UTC), so that no bar is incomplete.
    Raises DataError, with the stored panel unchanged, for a built-in panel, a source that fails, and prices that lack
    a symbol or end before those in the store.
    """
    store = Store()
    manifest = store.show(name)
    if manifest.builtin:
        raise DataError(
            f"panel {name!r} is built in, so there are no newer prices; set data.name to a panel made by "
            "`finrl-pod data fetch` or `data import`, or use --stored"
        )
    panel, query = _read_again(manifest, (today or datetime.now(UTC).date()) - timedelta(days=1))
    missing = sorted(set(manifest.symbols) - set(panel.symbols))
    if missing:
        raise DataError(f"the newer prices of {name!r} lack {missing[0]}, so the stored ones are kept")
    if str(panel.times[-1].astype("datetime64[D]")) < manifest.end[:10]:
        raise DataError(
            f"the newer prices of {name!r} end on {panel.times[-1].astype('datetime64[D]')}, before the "
            f"end of the stored prices, {manifest.end}: the stored ones are kept"
        )
    return store.save(dataclasses.replace(panel, name=name), query)


def _read_again(manifest: Manifest, last: date) -> tuple[Panel, dict[str, QueryValue]]:
    """Prices by the query of a manifest, and the query with its new end."""
    query = dict(manifest.query)
    if "file" in query:
        return import_again(manifest)
    if "source" not in query:
        raise DataError(
            f"panel {manifest.name!r} does not say where it came from; fetch or import it again, or use --stored"
        )
    query["end"] = last.isoformat()
    span = first_moment(str(query["start"]), "the start"), last_moment(last.isoformat(), "the end")
    return open_source(str(query["source"])).fetch(tuple(query["symbols"]), *span, manifest.bar), query
