"""The doctor: what it says about parts that are there, absent, and broken, and that it gives no secret away."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from finrl_pod_app.cli.main import run
from finrl_pod_app.services import doctor
from finrl_pod_app.services.doctor import Finding, examine, installed_versions

from finrl_pod.errors import DataError
from finrl_pod.native import library

SECRET = "do-not-tell-8472"


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path))


def found(name: str) -> Finding:
    return next(finding for finding in examine() if finding.name == name)


def test_this_machine_works_and_every_fault_has_a_fix() -> None:
    findings = examine()
    assert {finding.group for finding in findings} == {"versions", "devices", "data", "optional"}
    assert not [finding for finding in findings if finding.status == "broken"]
    assert all(bool(finding.fix) == (finding.status != "ok") for finding in findings)
    assert "sample" in found("data sets").value


def test_a_busy_machine_gets_advice_on_thread_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (0.9, 9.0, 9.0))
    assert found("idle cores") == Finding("devices", "idle cores", "ok", "3 of 4 (load of the last minute: 0.9)")
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (7.2, 0.0, 0.0))
    busy = found("idle cores")
    assert (busy.status, busy.value) == ("missing", "0 of 4 (load of the last minute: 7.2)")
    assert "OMP_WAIT_POLICY=PASSIVE" in busy.fix


def test_keys_are_named_and_never_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for key in doctor.ALPACA_KEYS:
        monkeypatch.setenv(key, SECRET)
    assert found("Alpaca keys").status == "ok"
    assert run(["doctor"]) == 0
    assert run(["doctor", "--json"]) == 0
    shown = capsys.readouterr()
    assert SECRET not in shown.out + shown.err
    monkeypatch.delenv(doctor.ALPACA_KEYS[1])
    finding = found("Alpaca keys")
    assert finding.status == "missing"
    assert doctor.ALPACA_KEYS[1] in finding.value
    assert doctor.ALPACA_KEYS[0] not in finding.value


def test_an_absent_option_is_missing_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: None)
    for name in ("yfinance", "alpaca-py", "isaacgym", "ray"):
        assert found(name).status == "missing"
    assert run(["doctor", "--json"]) == 0


def test_a_core_that_cannot_be_imported_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert found("numpy").status == "broken"
    assert run(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["works"] is False


def test_an_unreadable_store_is_reported_as_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise DataError("the folder is gone")

    monkeypatch.setattr("finrl_pod.data.store.Store.list", fail)
    finding = found("store")
    assert (finding.status, finding.value) == ("broken", "the folder is gone")
    assert "FINRL_POD_DATA" in finding.fix


def test_a_missing_compiler_is_reported_as_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_compiler", lambda: None)
    assert "slower" in found("kernels").fix


def test_disabled_kernels_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_compiler", lambda: "/usr/bin/g++")
    monkeypatch.setenv(library.SWITCH, "1")
    assert found("kernels").status == "ok"
    monkeypatch.setenv(library.SWITCH, "0")
    assert library.SWITCH in found("kernels").fix


def test_installed_versions_cover_what_results_depend_on() -> None:
    versions = installed_versions()
    assert {"finrl_pod", "python", "torch", "numpy", "pandas", "skfolio"} <= set(versions)
    assert all(versions.values())
