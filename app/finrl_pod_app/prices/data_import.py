"""Import a file of prices with its tables of corporate actions and of memberships."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_args

from finrl_pod.data.corporate_actions import Dividends, read_actions, with_actions
from finrl_pod.data.manifest import Manifest
from finrl_pod.data.membership import read_membership, with_membership
from finrl_pod.data.sources.bounded import ReadLimits, read_bounded
from finrl_pod.data.sources.files import ReadOptions
from finrl_pod.errors import DataError
from finrl_pod.types import Panel


def import_prices(
    file: Path,
    *,
    limits: ReadLimits | None = None,
    adjusted: bool | None = None,
    members: Path | None = None,
    actions: Path | None = None,
    dividends: Dividends = "cash",
    **options: Any,
) -> tuple[Panel, dict[str, Any]]:
    """Read a file, and the query that repeats it for the panel's manifest.

    adjusted: whether the file's prices are adjusted for splits and dividends; None: yes, unless there are `actions`.
    members, actions: CSV tables. dividends: how those of the actions are paid. options: the others of `ReadOptions`.
    Raises DataError as `read_bounded` and the readers of the tables, and for actions of adjusted prices.
    """
    if dividends not in get_args(Dividends):
        raise DataError(f"--dividends must be {' or '.join(get_args(Dividends))}, got {dividends!r}")
    if actions is not None and adjusted:
        raise DataError("corporate actions adjust prices as traded; leave out --adjusted, or --actions")
    if actions is None and dividends != "cash":
        raise DataError("--dividends says how those of a table are paid; give the table with --actions")
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


def import_again(manifest: Manifest) -> tuple[Panel, dict[str, Any]]:
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
