"""Tables of the audit and of doctor, and the load of the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from finrl_pod_app.dashboard.queries import checks, machine
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


def test_machine_load() -> None:
    now = machine.machine_load()
    assert now.cores >= 1
    assert 0 < now.own < now.memory_total
    assert 0 < now.memory_used <= now.memory_total


def test_disk_usage_of_missing_folders(tmp_path: Path) -> None:
    table = machine.disk_usage({"runs": tmp_path / "a" / "b", "prices": tmp_path})
    assert table.loc[0, "total"] == table.loc[1, "total"]
    assert ((table["used"] > 0) & (table["used"] < 1)).all()


def test_parse_gpu_rows() -> None:
    rows = [
        ["0", "NVIDIA H100", "37", "2048", "81559", "41"],
        ["1", "Tesla", "[N/A]", "0", "16384", "30"],
        ["nonsense"],
    ]
    table = machine.parse_gpu_rows(rows)
    assert table["card"].tolist() == ["0: NVIDIA H100", "1: Tesla"]
    assert table.loc[0, "use"] == pytest.approx(0.37)
    assert table.loc[0, "used"] == 2.0
    assert np.isnan(table.loc[1, "use"])
    assert machine.parse_gpu_rows([]).empty


def test_gpu_table_without_output_is_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "nvidia-smi"
    broken.write_text("#!/bin/sh\nexit 9\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpu_table().empty
    broken.write_text("#!/bin/sh\necho '0, NVIDIA H100, 37, 2048, 81559, 41'\n")
    assert machine.gpu_table()["card"].tolist() == ["0: NVIDIA H100"]
