"""Equity of the paper account, and of the replayed backtest where one was made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from finrl_pod.errors import RunError
from finrl_pod.files import read_json
from finrl_pod_app.dashboard.queries.paper_journal import Journal
from finrl_pod_app.paper.tracking_error import track_file

BASIS_POINTS = 10_000.0
BARS_PER_YEAR = 252


@dataclass(frozen=True, eq=False)
class Tracking:
    """curve: session, equity, backtest (NaN where the replay has none), difference (in basis points, of growth).

    end: difference at the last session of both. error: standard deviation of the daily differences a year, in basis
    points. behind: sessions that the account has and the replay does not.
    """

    curve: pd.DataFrame
    end: float
    error: float
    behind: int
    made: str
    strategy: str
    differences: tuple[str, ...]

    @property
    def known(self) -> bool:
        """Whether a replay was made."""
        return bool(self.made)


def tracking(journal: Journal) -> Tracking:
    """The journal's marks beside what `paper track` left. Raises RunError for a damaged file of it."""
    curve = journal.equity[["session", "equity"]].copy()
    document = _document(journal.path)
    replayed = dict(zip(document.get("sessions", []), document.get("backtest", []), strict=True))
    curve["backtest"] = curve.session.map(replayed).astype(float)
    both = curve.dropna(subset=["backtest"])
    curve["difference"] = float("nan")
    if len(both) > 1:
        mine, theirs = (both[name] / both[name].iloc[0] for name in ("equity", "backtest"))
        curve.loc[both.index, "difference"] = (mine - theirs) * BASIS_POINTS
        daily = (both.equity.pct_change() - both.backtest.pct_change()).dropna()
        error = float(daily.std() * BARS_PER_YEAR**0.5 * BASIS_POINTS) if len(daily) > 1 else float("nan")
        end = float(curve.difference.dropna().iloc[-1])
    else:
        error = end = float("nan")
    return Tracking(
        curve=curve,
        end=end,
        error=error,
        behind=len(curve) - len(both),
        made=str(document.get("made", "")),
        strategy=str(document.get("strategy", "")),
        differences=tuple(document.get("differences", [])),
    )


def _document(journal: Path) -> dict[str, list[str]]:
    file = track_file(journal)
    if not file.is_file():
        return {}
    document = read_json(file)
    if len(document.get("sessions", [])) != len(document.get("backtest", [])):
        raise RunError(f"{file} is damaged: it has not one value a session; make it anew with finrl-pod paper track")
    return document
