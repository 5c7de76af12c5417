"""What an audit says: one record a check, with the part at fault and the first bar where it shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["pass", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """check: look-ahead, leakage, warm-up, fills, data, sensitivity or determinism. status: "fail" makes results
    worthless, "warn" deserves doubt. part: the feature or step that it is about. bar: the first one (ISO) where the
    fault appears. message: one sentence. value: the figure in it, where there is one.
    """

    check: str
    status: Status
    part: str
    message: str
    bar: str | None = None
    value: float | None = None


def clean(findings: Iterable[Finding]) -> bool:
    """No finding is a failure."""
    return not any(finding.status == "fail" for finding in findings)
