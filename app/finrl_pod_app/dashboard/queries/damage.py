"""Damage of runs: one check for all pages. A damaged part is named with its reason and hides no other part."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace

from finrl_pod.errors import ConfigError, FinrlPodError, RunError
from finrl_pod_app.dashboard.queries import runs
from finrl_pod_app.dashboard.queries.runs import CONFIG, CURVES, PAGE, REPORT, VERDICT, RunFiles, RunSummary
from finrl_pod_app.report.records import RunReport

MAX_HEADER_BYTES = 1_000_000  # of a safetensors file
_LENGTH_BYTES = 8  # of its first field, the length of the header


def summarise(run: RunFiles) -> RunSummary:
    """The summary of a run; its `error` names every damaged part of its files."""
    summary = runs.summarise(run)
    errors = {summary.error: None} if summary.error else {}
    for file, check in _CHECKS.items():
        if run.has(file):
            try:
                check(run)
            except Exception as error:  # noqa: BLE001 - files may hold anything
                errors[runs.damage(run, error)] = None
    return replace(summary, error="; ".join(errors))


def readable_report(run: RunFiles) -> RunReport:
    """The report; without any parts if its file cannot be read, for pages that show the other parts of a run."""
    try:
        return runs.report(run)
    except FinrlPodError:
        return RunReport()


def _check_config(run: RunFiles) -> None:
    try:
        runs.config(run)
    except ConfigError as error:
        reason = str(error).partition(": ")[2].partition(";")[0]
        raise RunError(f"{CONFIG} is damaged: {reason}") from None


def _check_report(run: RunFiles) -> None:
    if damage := runs.report(run).damage:
        raise RunError(f"{REPORT} is damaged: {', '.join(damage)}")


def _check_page(run: RunFiles) -> None:
    if not runs.is_file(run.path / PAGE):
        raise RunError(f"{PAGE} is damaged: it is not a regular file; restore it")
    if (size := os.lstat(run.path / PAGE).st_size) > runs.MAX_PAGE_BYTES:
        raise RunError(f"{PAGE} is damaged: it has {size:,} bytes; at most {runs.MAX_PAGE_BYTES:,} are shown")


def _check_curves(run: RunFiles) -> None:
    """Compare the size of the file with the one that its header requires. Pages that show the curves read all of it."""
    file = run.path / CURVES
    if not runs.is_file(file):
        raise RunError(f"{CURVES} is damaged: it is not a regular file; evaluate the run again")
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        header = stream.read(min(length, MAX_HEADER_BYTES))
    try:
        arrays = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        end = _LENGTH_BYTES + length + max(entry["data_offsets"][1] for entry in arrays.values())
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        end = -1
    if end != file.stat().st_size:
        raise RunError(f"{CURVES} is damaged: it is not complete; evaluate the run again")


_CHECKS: dict[str, Callable[[RunFiles], object]] = {
    CONFIG: _check_config,
    VERDICT: runs.verdict,
    REPORT: _check_report,
    PAGE: _check_page,
    CURVES: _check_curves,
}
