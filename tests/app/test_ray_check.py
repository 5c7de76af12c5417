"""Whether doctor sees beforehand that Ray could not start."""

from __future__ import annotations

import socket
from importlib import machinery
from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app.setup import doctor, ray_check
from finrl_pod_app.setup.ray_check import SERVERS, RayFault, ray_fault


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose servers run."""
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    for server in SERVERS:
        program = tmp_path / server
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\necho version\n")
        program.chmod(0o755)
    spec = machinery.ModuleSpec("ray", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(ray_check.util, "find_spec", lambda _: spec)
    return tmp_path


def fault() -> RayFault:
    result = ray_fault()
    assert result is not None
    assert "--engine processes" in result.fix
    return result


@pytest.mark.usefixtures("package")
def test_servers_that_run_have_no_fault() -> None:
    assert ray_fault() is None


def test_a_package_that_is_not_installed_has_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_check.util, "find_spec", lambda _: None)
    assert ray_fault() is None


def test_a_server_that_does_not_run_is_named(package: Path) -> None:
    raylet = package / SERVERS[1]
    raylet.write_text("#!/bin/sh\necho 'libssl.so: cannot open shared object file' >&2\nexit 127\n")
    assert fault().reason == "raylet does not run: libssl.so: cannot open shared object file"
    raylet.unlink()
    assert fault().reason == "raylet does not run: No such file or directory"


@pytest.mark.usefixtures("package")
def test_sockets_must_fit_and_be_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", f"/tmp/{'x' * 60}")
    assert "at most 107 work" in fault().reason
    monkeypatch.setenv("RAY_TMPDIR", "/proc")
    assert fault().reason.startswith("/proc cannot be written: ")


@pytest.mark.usefixtures("package")
def test_loopback_must_be_free_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> socket.socket:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket, "create_server", refuse)
    assert fault().reason == "nothing may listen on 127.0.0.1: Permission denied"


def test_doctor_reports_the_start_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ray_fault", lambda: RayFault("raylet does not run: no", "install Ray again"))
    finding = next(finding for finding in doctor._optional() if finding.name == "ray start")
    assert (finding.group, finding.status, finding.need) == ("optional", "missing", "optional")
    monkeypatch.setattr(doctor, "ray_fault", lambda: None)
    assert next(finding for finding in doctor._optional() if finding.name == "ray start").status == "ok"
