"""What is known or visible to be wrong with the data. It warns: prices are kept as they are."""

from __future__ import annotations

import numpy as np

from finrl_pod.data.flaws import check, sentences
from finrl_pod.evaluate.audit.pipeline import Finding
from finrl_pod.types import Panel

CHECK = "data"
FEW_BARS = 252  # a panel shorter than a year says nothing of who survived it


def flaws(panel: Panel) -> list[Finding]:
    """The panel's stated flaws, what its checks find (a broken rule is a failure), and survivorship."""
    found = check(panel)
    hard = [Finding(CHECK, "fail", flaw.symbol or "prices", flaw.message) for flaw in found if flaw.hard]
    soft = {flaw.message: flaw for flaw in found if not flaw.hard}
    known = dict.fromkeys((*panel.flaws, *sentences(found)))
    warned = [Finding(CHECK, "warn", _part(text, soft), text, _bar(text, soft, panel)) for text in known if text]
    if not any("urvivorship" in text for text in known) and _all_survive(panel):
        message = (
            f"Survivorship: all {len(panel.symbols)} tickers live to the last bar, none ever failed; whoever picked "
            "them knew that."
        )
        warned.append(Finding(CHECK, "warn", "survivorship", message))
    return hard + warned or [Finding(CHECK, "pass", "prices", "No flaws of the data are known.")]


def _all_survive(panel: Panel) -> bool:
    return len(panel.times) >= FEW_BARS and len(panel.symbols) > 1 and bool(panel.tradable[-1].all())


def _part(text: str, soft: dict) -> str:  # type: ignore[type-arg]
    if text in soft:
        return soft[text].symbol or "prices"
    return "survivorship" if text.startswith("Survivorship") else "prices"


def _bar(text: str, soft: dict, panel: Panel) -> str | None:  # type: ignore[type-arg]
    time = soft[text].time if text in soft else None
    return (
        None
        if time is None
        else str(np.datetime64(time).astype("datetime64[D]" if panel.bar == "1d" else "datetime64[m]"))
    )
