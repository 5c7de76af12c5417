"""The ladder of a run in words and cells: what each step returns over the base, which one is deployed, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finrl_pod_app.report.columns import MISSING, number, percent

if TYPE_CHECKING:
    from finrl_pod_app.report.records import RungPeriod, RunReport

LABELS = {
    "base": "base, traded as slowly",
    "momentum": "12-1 momentum (fixed)",
    "reversal": "5-day reversal (fixed)",
    "low_volatility": "low volatility (fixed)",
    "closed_form": "solved linear policy",
    "rl": "reinforcement learning",
}
COLUMNS = (  # heading, unit, definition; all per year
    ("active", "%", "mean return less that of the base"),
    ("alpha", "%", "active return less beta times the base"),
    ("TE", "%", "standard deviation of active returns"),
    ("turnover", "×", "one-sided"),
)
NOTE = (
    "Every step trades through the same mandate, at the same costs and speed, and is compared with the base traded as "
    "slowly. Base and fixed tilts are never deployed. Nothing is chosen by the columns of the test."
)


def ladder_cells(report: RunReport) -> list[tuple[str, bool, list[str]]]:
    """Rows of the table: label, whether it is deployed, and cells for validation and then for test."""
    return [
        (LABELS[row.rung], row.deployed, [cell for period in (row.validation, row.test) for cell in _cells(period)])
        for row in report.ladder
    ]


def _cells(period: RungPeriod) -> list[str]:
    """The cells of `COLUMNS` for one period."""
    return [
        percent(period.active_return, 2, sign=True),
        percent(period.alpha, 2, sign=True),
        percent(period.tracking_error, 2),
        number(period.turnover),
    ]


def ladder_sentence(report: RunReport) -> str:
    """What training added to the solved policy, and which one is deployed; empty for a run without a ladder."""
    rungs = {row.rung: row for row in report.ladder}
    solved, trained = rungs.get("closed_form"), rungs.get("rl")
    if solved is None:
        return ""
    if report.start is None or trained is None:
        return "Deployed: the solved linear policy, which nothing was trained from."
    deployed = "the trained ensemble" if trained.deployed else "the solved linear policy that it started from"
    return (
        f"Reinforcement learning added {_gain(trained.validation, solved.validation)}% per year to the solved policy "
        f"on validation (p-value {report.start.p_value:.2g}, at most {report.start.level:g} is needed to deploy it) "
        f"and {_gain(trained.test, solved.test)}% on test. Deployed: {deployed}."
    )


def _gain(trained: RungPeriod, solved: RungPeriod) -> str:
    if trained.active_return is None or solved.active_return is None:
        return MISSING
    return percent(trained.active_return - solved.active_return, 2, sign=True)
