"""Check data quality: known and visible flaws of the prices. Prices are never changed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from finrl_pod.data.flaws import Flaw, check, sentences
from finrl_pod.evaluate.audit.pipeline import Finding
from finrl_pod.types import Panel

CHECK = "data"


def check_data(panel: Panel) -> list[Finding]:
    """Report the panel's stated flaws and those its checks find; a broken rule is a failure."""
    found = check(panel)
    hard = [Finding(CHECK, "fail", flaw.symbol or "prices", flaw.message) for flaw in found if flaw.hard]
    soft = {flaw.message: flaw for flaw in found if not flaw.hard}
    known = dict.fromkeys((*panel.flaws, *sentences(found)))
    warned = [Finding(CHECK, "warn", _part(text, soft), text, _bar(text, soft, panel)) for text in known if text]
    return hard + warned or [Finding(CHECK, "pass", "prices", "The data has no known flaws.")]


def _part(text: str, soft: Mapping[str, Flaw]) -> str:
    if text.startswith("Survivorship"):
        return "survivorship"
    return (soft[text].symbol if text in soft else None) or "prices"


def _bar(text: str, soft: Mapping[str, Flaw], panel: Panel) -> str | None:
    time = soft[text].time if text in soft else None
    if time is None:
        return None
    return str(np.datetime64(time).astype("datetime64[D]" if panel.bar == "1d" else "datetime64[m]"))
