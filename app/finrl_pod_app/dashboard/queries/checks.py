"""Results of the audit, the doctor and the promotion rules as tables for the dashboard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from finrl_pod.promotion.verdict import Verdict

if TYPE_CHECKING:
    from finrl_pod.evaluate.audit.pipeline import Finding as AuditFinding
    from finrl_pod_app.evaluation.audit import Audit
    from finrl_pod_app.setup.doctor import Finding as DoctorFinding

AUDIT_LABELS = {
    "fail": "✗\N{NO-BREAK SPACE}failed",
    "warn": "⚠\N{NO-BREAK SPACE}warning",
    "pass": "✓\N{NO-BREAK SPACE}passed",
}
DOCTOR_LABELS = {
    "broken": "✗\N{NO-BREAK SPACE}broken",
    "missing": "⚠\N{NO-BREAK SPACE}missing",
    "ok": "✓\N{NO-BREAK SPACE}ok",
}
RULE_PASSED, RULE_FAILED = "✓\N{NO-BREAK SPACE}passed", "✗\N{NO-BREAK SPACE}failed"


def audit_table(audit: Audit) -> pd.DataFrame:
    """One row per finding, failures first, then warnings, in the order of the checks.

    Columns: status (a label), check, explanation (the message with part and first bar, unless it names them), part, bar
    (first bar affected, or empty), message, value.
    """
    rows = []
    for finding in sorted(audit.findings, key=lambda finding: list(AUDIT_LABELS).index(finding.status)):
        texts = {"bar": finding.bar or "", "explanation": _explanation(finding)}
        rows.append({**vars(finding), "status": AUDIT_LABELS[finding.status], **texts})
    return pd.DataFrame(rows, columns=["status", "check", "explanation", "part", "bar", "message", "value"])


def audit_counts(audit: Audit) -> dict[str, int]:
    """Number of findings by status: fail, warn, pass."""
    counts = Counter(str(finding.status) for finding in audit.findings)
    return {status: counts[status] for status in AUDIT_LABELS}


def doctor_table(findings: Sequence[DoctorFinding]) -> pd.DataFrame:
    """One row per finding, broken ones first: status (a label), group, name, value, fix."""
    sorted_findings = sorted(findings, key=lambda finding: list(DOCTOR_LABELS).index(finding.status))
    rows = [{**vars(finding), "status": DOCTOR_LABELS[finding.status]} for finding in sorted_findings]
    return pd.DataFrame(rows, columns=["status", "group", "name", "value", "fix"])


def rules_table(verdict: Verdict) -> pd.DataFrame:
    """One row per promotion rule of a verdict: passed (a label), rule, value, limit, sentence."""
    rows = [
        {
            "passed": RULE_PASSED if rule.passed else RULE_FAILED,
            "rule": rule.name.replace("_", " "),
            "value": rule.value,
            "limit": rule.limit,
            "sentence": rule.sentence[:1].upper() + rule.sentence[1:],
        }
        for rule in verdict.rules
    ]
    return pd.DataFrame(rows, columns=["passed", "rule", "value", "limit", "sentence"])


def _explanation(finding: AuditFinding) -> str:
    message = finding.message
    subject = "" if finding.part.lower() in message.lower() else f"{finding.part[:1].upper()}{finding.part[1:]}: "
    first_bar = f" First at {finding.bar}." if finding.bar and finding.bar not in message else ""
    return f"{subject}{message if subject else message[:1].upper() + message[1:]}{first_bar}"
