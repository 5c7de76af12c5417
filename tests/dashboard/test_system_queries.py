"""Tables of the audit and of doctor."""

from __future__ import annotations

from finrl_pod_app.dashboard.queries import checks
from finrl_pod_app.evaluation.audit import Audit
from finrl_pod_app.setup.doctor import Finding

from finrl_pod.evaluate.audit.pipeline import Finding as AuditFinding
from finrl_pod.evaluate.audit.pipeline import Status


def test_audit_failures_come_first_in_order() -> None:
    bars = (None, "2020-01-02", None, None)
    statuses: tuple[Status, ...] = ("pass", "fail", "warn", "fail")
    findings = [AuditFinding(*row, "p", "m", bar) for *row, bar in zip("abcd", statuses, bars, strict=True)]
    audit = Audit("a strategy", tuple(findings))
    table = checks.audit_table(audit)
    assert table["check"].tolist() == ["b", "d", "c", "a"]
    assert table["bar"].tolist() == ["2020-01-02", "", "", ""]
    assert checks.audit_counts(audit) == {"fail": 2, "warn": 1, "pass": 1}
    assert table["explanation"].tolist() == ["P: m First at 2020-01-02.", "P: m", "P: m", "P: m"]
    named = AuditFinding("a", "pass", "close", "the close leaks from 2020-01-02.", "2020-01-02")
    assert checks.audit_table(Audit("a strategy", (named,)))["explanation"].tolist() == [
        "The close leaks from 2020-01-02."
    ]
    assert checks.audit_table(Audit("a strategy", ())).empty


def test_doctor_broken_findings_come_first() -> None:
    found = [
        Finding("versions", "a", "ok", "1"),
        Finding("data", "b", "missing", ""),
        Finding("data", "c", "broken", ""),
    ]
    assert checks.doctor_table(found)["name"].tolist() == ["c", "b", "a"]
