"""The ladder of a run in words and cells: what each step returns over the base, which one is deployed, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finrl_pod_app.report.columns import number, percent

LABELS = {
    "base": "base, traded as slowly",
    "momentum": "12-1 momentum (fixed)",
    "reversal": "5-day reversal (fixed)",
    "low_volatility": "low volatility (fixed)",
    "closed_form": "solved linear policy",
    "rl": "reinforcement learning",
}
COLUMNS = (  # key, heading, unit, definition; all per year
    ("active_return", "active", "%", "mean return less that of the base"),
    ("alpha", "alpha", "%", "active return less beta times the base"),
    ("tracking_error", "TE", "%", "standard deviation of active returns"),
    ("turnover", "turnover", "×", "one-sided"),
)
SIGNED = ("active_return", "alpha")
NOTE = (
    "Every step trades through the same mandate, at the same costs and speed, and is compared with the base traded as "
    "slowly. Base and fixed tilts are never deployed. Nothing is chosen by the columns of the test."
)


def ladder_cells(document: Mapping[str, Any]) -> list[tuple[str, bool, list[str]]]:
    """Rows of the table: label, whether it is deployed, and cells for validation and then for test."""
    return [
        (
            LABELS[row["rung"]],
            row["deployed"],
            [
                number(row[period][key]) if key == "turnover" else percent(row[period][key], 2, sign=key in SIGNED)
                for period in ("validation", "test")
                for key, *_ in COLUMNS
            ],
        )
        for row in document.get("ladder") or ()
    ]


def ladder_sentence(document: Mapping[str, Any]) -> str:
    """What training added to the solved policy, and which one is deployed; empty for a run without a ladder."""
    rows = {row["rung"]: row for row in document.get("ladder") or ()}
    start = document.get("start")
    if "closed_form" not in rows:
        return ""
    if not start or "rl" not in rows:
        return "Deployed: the solved linear policy, which nothing was trained from."
    gain = {
        name: rows["rl"][name]["active_return"] - rows["closed_form"][name]["active_return"]
        for name in ("validation", "test")
    }
    deployed = "the trained ensemble" if rows["rl"]["deployed"] else "the solved linear policy that it started from"
    return (
        f"Reinforcement learning added {percent(gain['validation'], 2, sign=True)}% a year to the solved policy on "
        f"validation (p-value {start['p_value']:.2g}, at most {start['level']:g} is needed to deploy it) and "
        f"{percent(gain['test'], 2, sign=True)}% on test. Deployed: {deployed}."
    )
