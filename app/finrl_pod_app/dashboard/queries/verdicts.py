"""A run's verdict as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from finrl_pod.errors import RunError
from finrl_pod.files import read_json
from finrl_pod_app.dashboard.queries.runs import VERDICT, RunFiles

_FIELDS = ("promoted", "rules", "trials", "looks", "statistics")
PASSED, FAILED = "✓\N{NO-BREAK SPACE}passed", "✗\N{NO-BREAK SPACE}failed"


def read(run: RunFiles) -> dict[str, Any] | None:
    """The object of verdict.json, or None before a verdict. Raises RunError for a damaged one."""
    if not (run.path / VERDICT).exists():
        return None
    values = read_json(run.path / VERDICT)
    if missing := [name for name in _FIELDS if name not in values]:
        raise RunError(f"{run.path / VERDICT} is damaged: it lacks {missing[0]}; let the run be judged anew")
    return values


def rules_table(verdict: Mapping[str, Any]) -> pd.DataFrame:
    """A row for each rule of the gate: passed, rule, value, limit, sentence."""
    rows = [
        {
            "passed": PASSED if rule["passed"] else FAILED,
            "rule": str(rule["name"]).replace("_", " "),
            "value": rule.get("value"),
            "limit": rule.get("limit"),
            "sentence": rule["sentence"][:1].upper() + rule["sentence"][1:],
        }
        for rule in verdict["rules"]
    ]
    return pd.DataFrame(rows, columns=["passed", "rule", "value", "limit", "sentence"])


def logits(verdict: Mapping[str, Any]) -> Mapping[str, Sequence[float]] | None:
    """The histogram of the logits of cross-validation, {"counts": [B], "edges": [B + 1]}, or None."""
    found = (verdict["statistics"].get("overfitting") or {}).get("logits")
    return found if isinstance(found, dict) else None
