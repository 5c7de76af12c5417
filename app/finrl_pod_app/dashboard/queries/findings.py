"""What an audit or the doctor found, as tables: the worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

AUDIT_COLUMNS = ("status", "check", "words", "part", "bar", "message", "value")
_AUDIT_ORDER = {"fail": 0, "warn": 1, "pass": 2}
AUDIT_WORDS = {
    "fail": "✗\N{NO-BREAK SPACE}fault",
    "warn": "⚠\N{NO-BREAK SPACE}doubt",
    "pass": "✓\N{NO-BREAK SPACE}clean",
}
_DOCTOR_ORDER = {"broken": 0, "missing": 1, "ok": 2}
DOCTOR_WORDS = {
    "broken": "✗\N{NO-BREAK SPACE}broken",
    "missing": "⚠\N{NO-BREAK SPACE}missing",
    "ok": "✓\N{NO-BREAK SPACE}works",
}


def audit_table(audit: Mapping[str, Any]) -> pd.DataFrame:
    """A row for each finding of `Audit.plain`: status in words, check, part, bar (the first one where it shows, or
    empty), message, value; and words: the message, with part and bar where it does not name them. Faults come first,
    then doubts; within them the order of the checks is kept."""
    found = sorted(audit["findings"], key=lambda one: _AUDIT_ORDER[one["status"]])
    rows = [
        {**one, "status": AUDIT_WORDS[one["status"]], "bar": one["bar"] or "", "words": _in_words(one)} for one in found
    ]
    return pd.DataFrame(rows, columns=AUDIT_COLUMNS)


def counts(audit: Mapping[str, Any]) -> dict[str, int]:
    """How many findings there are of each status."""
    statuses = [one["status"] for one in audit["findings"]]
    return {status: statuses.count(status) for status in _AUDIT_ORDER}


def doctor_table(found: Sequence[Any]) -> pd.DataFrame:
    """A row for each `doctor.Finding`: status in words, group, name, value, mend. What is broken comes first."""
    ordered = sorted(found, key=lambda one: _DOCTOR_ORDER[one.status])
    rows = [{**vars(one), "status": DOCTOR_WORDS[one.status]} for one in ordered]
    return pd.DataFrame(rows, columns=["status", "group", "name", "value", "fix"])


def _in_words(one: Mapping[str, Any]) -> str:
    message = str(one["message"])
    about = "" if one["part"].lower() in message.lower() else f"{one['part'][:1].upper()}{one['part'][1:]}: "
    first = f" First at {one['bar']}." if one["bar"] and one["bar"] not in message else ""
    return f"{about}{message if about else message[:1].upper() + message[1:]}{first}"
