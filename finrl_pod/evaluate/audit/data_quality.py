"""Check data quality: known and visible flaws of the prices, and survivorship. Prices are never changed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from finrl_pod.data.flaws import Flaw, check, sentences
from finrl_pod.evaluate.audit.pipeline import Finding
from finrl_pod.types import Panel

CHECK = "data"
MIN_SURVIVORSHIP_BARS = 252  # a shorter panel shows too little of which tickers survive


def check_data(panel: Panel) -> list[Finding]:
    """Report the panel's stated flaws, those its checks find (a broken rule is a failure), and survivorship."""
    found = check(panel)
    hard = [Finding(CHECK, "fail", flaw.symbol or "prices", flaw.message) for flaw in found if flaw.hard]
    soft = {flaw.message: flaw for flaw in found if not flaw.hard}
    known = dict.fromkeys((*panel.flaws, *sentences(found)))
    warned = [Finding(CHECK, "warn", _part(text, soft), text, _bar(text, soft, panel)) for text in known if text]
    if not any("urvivorship" in text for text in known) and _all_survive(panel):
        message = (
            f"Survivorship: all {len(panel.symbols)} tickers trade until the last bar, none was delisted; they were "
            "probably selected with hindsight."
        )
        warned.append(Finding(CHECK, "warn", "survivorship", message))
    return hard + warned or [Finding(CHECK, "pass", "prices", "The data has no known flaws.")]


def _all_survive(panel: Panel) -> bool:
    return (
        len(panel.times) >= MIN_SURVIVORSHIP_BARS and len(panel.symbols) > 1 and bool(panel.investable[-1].all())
    ) and (panel.members is None or bool(panel.members.all()))


def _part(text: str, soft: Mapping[str, Flaw]) -> str:
    if text in soft:
        return soft[text].symbol or "prices"
    return "survivorship" if text.startswith("Survivorship") else "prices"


def _bar(text: str, soft: Mapping[str, Flaw], panel: Panel) -> str | None:
    time = soft[text].time if text in soft else None
    if time is None:
        return None
    return str(np.datetime64(time).astype("datetime64[D]" if panel.bar == "1d" else "datetime64[m]"))
