"""The doctor command: available, missing and broken components."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import pytest
from finrl_pod_app.cli.main import run
from finrl_pod_app.setup import doctor
from finrl_pod_app.setup.doctor import Finding, KernelFinding, check_installation, installed_versions
from finrl_pod_app.setup.kernels import kernel_sources

from finrl_pod.errors import DataError
from finrl_pod.native import library, prebuild


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path))


def finding_of(name: str) -> Finding:
    return next(finding for finding in check_installation() if finding.name == name)


@pytest.mark.slow
def test_installation_works_and_every_fault_has_a_fix() -> None:
    findings = check_installation()
    assert {finding.group for finding in findings} == {"versions", "devices", "data", "optional"}
    assert not [finding for finding in findings if finding.status == "broken"]
    assert all(bool(finding.fix) == (finding.status != "ok") for finding in findings)
    assert "sample" in finding_of("data sets").value


@pytest.mark.slow
def test_missing_optional_package_is_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: None)
    for name in ("yfinance", "alpaca-py", "ray"):
        assert finding_of(name).status == "missing"
        assert finding_of(name).need == "optional"
    assert run(["doctor", "--json"]) == 0


def test_the_list_tells_required_from_optional_and_unavailable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = [
        Finding("versions", "numpy", "ok", "2.0"),
        Finding("devices", "cuda", "missing", "no device", "nothing to do", "machine"),
        Finding("optional", "ray", "missing", "not installed", "pip install ray", "optional"),
    ]
    monkeypatch.setattr(doctor, "check_installation", lambda: findings)
    assert run(["doctor"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["ok", "numpy", "2.0"] in lines
    assert ["unavailable", "cuda", "no", "device"] in lines
    assert ["optional", "ray", "not", "installed"] in lines
    assert lines[-1][-1] == "1."
    findings.append(Finding("versions", "torch", "broken", "cannot be imported", "install it"))
    assert run(["doctor"]) == 1
    assert capsys.readouterr().out.endswith("1 required part is broken: fix what is marked so.\n")


@pytest.mark.slow
def test_core_that_cannot_be_imported_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert finding_of("numpy").status == "broken"
    assert run(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["works"] is False


@pytest.mark.slow
def test_unreadable_store_is_reported_as_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise DataError("the folder is missing")

    monkeypatch.setattr("finrl_pod.data.store.Store.list", fail)
    finding = finding_of("store")
    assert (finding.status, finding.value) == ("broken", "the folder is missing")
    assert "FINRL_POD_DATA" in finding.fix


def test_missing_compiler_is_reported_as_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prebuild, "find_compiler", lambda: None)
    assert "slower" in finding_of("kernels").fix


def test_compiler_that_fails_is_reported_as_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    finding = finding_of("kernels")
    assert (finding.status, finding.need) == ("missing", "optional")
    assert "/bin/false" in finding.value
    assert "slower" in finding.fix


def test_every_kernel_must_be_prebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One prebuilt source of eight is not enough without a compiler, nor is a library that cannot be loaded."""
    sources = kernel_sources()
    assert len(sources) >= 8
    monkeypatch.setattr(library, "PREBUILT", tmp_path)
    monkeypatch.setattr(library, "_processor_features", lambda: library.LEVELS["x86-64-v3"])
    for source in sources:
        (tmp_path / prebuild.prebuilt_name(source, "x86-64-v3")).touch()
    unreadable = tmp_path / prebuild.prebuilt_name(sources[-1], "x86-64-v3")
    monkeypatch.setattr(library.ctypes, "CDLL", lambda path: load_unless(path, str(unreadable)))
    monkeypatch.setattr(prebuild, "find_compiler", lambda: None)
    finding = finding_of("kernels")
    assert (finding.status, finding.need) == ("missing", "optional")
    assert f"1 of {len(sources)} " in finding.value
    assert isinstance(finding, KernelFinding)
    assert (finding.found, finding.expected) == (len(sources) - 1, len(sources))
    monkeypatch.setattr(library.ctypes, "CDLL", lambda path: load_unless(path, ""))
    assert run(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    (kernels,) = (finding for finding in findings if finding["name"] == "kernels")
    assert (kernels["status"], kernels["found"], kernels["expected"]) == ("ok", len(sources), len(sources))


def load_unless(path: str, unreadable: str) -> object:
    if path == unreadable:
        raise OSError("not a library")
    return object()


@pytest.mark.slow
def test_disabled_kernels_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prebuild, "find_compiler", lambda: "/usr/bin/g++")
    monkeypatch.setenv(library.SWITCH, "1")
    assert finding_of("kernels").status == "ok"
    monkeypatch.setenv(library.SWITCH, "0")
    assert library.SWITCH in finding_of("kernels").fix


def test_installed_versions_cover_what_results_depend_on() -> None:
    versions = installed_versions()
    assert {"finrl_pod", "python", "torch", "numpy", "pandas", "scipy"} <= set(versions)
    assert all(versions.values())


@pytest.mark.slow
def test_home_without_room_is_reported_as_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = errno.EROFS

    def refuse(handle: int, offset: int, size: int) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    assert finding_of("home").value == str(tmp_path / "home")
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    finding = finding_of("home")
    assert (finding.status, finding.need) == ("broken", "required")
    assert "Read-only file system" in finding.value
    assert "make it writable, or set FINRL_POD_HOME" in finding.fix
    reason = errno.ENOSPC
    assert finding_of("home").fix.startswith("free some space, or set FINRL_POD_HOME")
