"""Files in deploy/: valid for this version, and checked by rules that can fail. `make check-deploy` checks more."""

from __future__ import annotations

import copy
import http.server
import importlib.util
import re
import shlex
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from finrl_pod_app.cli.main import app

import finrl_pod
from finrl_pod.paper import settings as paper_settings
from finrl_pod.settings import run as run_settings
from tests.command_parsing import parse

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
MANIFESTS = [
    manifest
    for file in sorted((DEPLOY / "kubernetes").glob("*/*.yaml"))
    for manifest in yaml.safe_load_all(file.read_text())
    if "metadata" in manifest
]


def load_module(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check = load_module(DEPLOY / "check.py")
PODS = [(manifest["kind"], spec) for manifest in MANIFESTS for spec in check.pod_specs(manifest)]


def pinned(file: Path) -> dict[str, str]:
    """Versions in a file of requirements."""
    lines = (line for line in file.read_text().splitlines() if "==" in line)
    return {name.lower(): version for name, version in (line.split("==") for line in lines)}


# ---------------------------------------------------------------------- Kubernetes


def test_every_pod_has_limits_probes_and_restrictions() -> None:
    assert sorted(kind for kind, _ in PODS) == ["CronJob", "Deployment", "RayCluster", "RayCluster"]
    assert [fault for _, spec in PODS for fault in check.pod_faults(spec)] == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda pod: pod.pop("securityContext"), "runAsNonRoot"),
        (lambda pod: pod.pop("automountServiceAccountToken"), "service account"),
        (lambda pod: pod["containers"][0]["resources"]["limits"].pop("memory"), "limits of cpu and memory"),
        (lambda pod: pod["containers"][0].pop("livenessProbe"), "liveness probe"),
        (lambda pod: pod["containers"][0]["securityContext"].pop("capabilities"), "capabilities"),
        (lambda pod: pod["containers"][0]["securityContext"].pop("readOnlyRootFilesystem"), "root file system"),
        (lambda pod: pod["containers"][0]["env"][0].update(value="PK123"), "must refer to a secret"),
    ],
)
def test_pods_that_lack_something_are_found(change: Callable[[dict[str, Any]], Any], fault: str) -> None:
    pod = copy.deepcopy(next(spec for kind, spec in PODS if kind == "Deployment"))
    change(pod)
    assert any(fault in found for found in check.pod_faults(pod))


def test_secrets_are_referred_to_and_none_is_stored() -> None:
    assert [manifest for manifest in MANIFESTS if manifest["kind"] == "Secret"] == []
    text = (DEPLOY / "kubernetes" / "base" / "paper.yaml").read_text()
    documented = (ROOT / "docs" / "deployment.md").read_text()
    for name in {*re.findall(r"(?:secretName|name): (finrl-pod-\S+)", text)} - {
        "finrl-pod-config",
        "finrl-pod-registry",
    }:
        assert f"create secret generic {name} " in documented


def test_images_have_the_tag_of_the_version() -> None:
    files = (DEPLOY / "kubernetes").glob("*/kustomization.yaml")
    tags = {image["newTag"] for file in files for image in yaml.safe_load(file.read_text())["images"]}
    assert tags == {f"cpu-{finrl_pod.__version__}", f"cuda-{finrl_pod.__version__}"}


def test_claims_of_one_node_are_mounted_once() -> None:
    """Pods of different nodes cannot share them."""
    claims = {c["metadata"]["name"]: c["spec"] for c in MANIFESTS if c["kind"] == "PersistentVolumeClaim"}
    mounts = Counter(
        volume["persistentVolumeClaim"]["claimName"]
        for _, spec in PODS
        for volume in spec["volumes"]
        if "persistentVolumeClaim" in volume
    )
    assert mounts == dict.fromkeys(claims, 1)
    assert not any("ReadWriteMany" in spec["accessModes"] for spec in claims.values())


def test_cluster_has_the_ray_of_the_image() -> None:
    versions = pinned(ROOT / "constraints.txt")
    clusters = [manifest for manifest in MANIFESTS if manifest["kind"] == "RayCluster"]
    assert {cluster["spec"]["rayVersion"] for cluster in clusters} <= {versions.get("ray", "2.60.0")}
    assert all(cluster["spec"]["authOptions"]["mode"] == "token" for cluster in clusters)


# ---------------------------------------------------------------------- compose


def test_compose_file_follows_its_schema() -> None:
    command = [
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        str(DEPLOY / "compose/compose.yaml"),
    ]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_services_are_restricted_limited_and_checked() -> None:
    assert set(COMPOSE["services"]) == {"broker", "paper", "dashboard", "trainer"}
    for name, service in COMPOSE["services"].items():
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"]
        assert {"mem_limit", "cpus"} <= set(service)
        assert name == "trainer" or "FINRL_POD_HEALTH_URL" in service["environment"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def container_commands() -> Iterator[list[str]]:
    """Arguments of finrl-pod in all containers."""
    for service in COMPOSE["services"].values():
        yield from finrl_pod_arguments(service.get("entrypoint", []), service["command"])
    for _, spec in PODS:
        for container in spec["containers"]:
            yield from finrl_pod_arguments(container.get("command", []), container.get("args", []))


def finrl_pod_arguments(entrypoint: list[str], command: list[str]) -> Iterator[list[str]]:
    if entrypoint and command:  # a shell script
        words = command[0].replace(";", " ; ").replace("&&", " ; ").replace("<", " ; ").split()
        starts = [i + 1 for i, word in enumerate(words) if word == "finrl-pod"]
        ends = [words.index(";", start) if ";" in words[start:] else len(words) for start in starts]
        yield from (words[start:end] for start, end in zip(starts, ends, strict=True))
    elif command:
        yield command


@pytest.mark.slow
def test_commands_of_containers_are_valid() -> None:
    found = list(container_commands())
    assert len(found) == 9
    for arguments in found:
        assert parse(typer.main.get_command(app), list(arguments)) in arguments


def test_systemd_units_start_valid_commands_and_alert_a_failure() -> None:
    units = {path.name: path.read_text().replace("\\\n", " ") for path in (ROOT / "deploy").glob("*.service")}
    assert set(units) == {"finrl-pod-paper.service", "finrl-pod-paper-failed.service"}
    assert "OnFailure=finrl-pod-paper-failed.service" in units["finrl-pod-paper.service"].splitlines()
    for unit, expected in (("finrl-pod-paper.service", "run"), ("finrl-pod-paper-failed.service", "alert")):
        (line,) = [text for text in units[unit].splitlines() if text.startswith("ExecStart=")]
        words = shlex.split(line.partition("finrl-pod ")[2])
        assert words[:2] == ["paper", expected]
        assert parse(typer.main.get_command(app), words) in words


@pytest.mark.parametrize("folder", ["compose", "kubernetes/base"])
def test_configs_are_valid(folder: str) -> None:
    config = paper_settings.load(DEPLOY / folder / "paper.toml")
    assert config.journal == "/var/lib/finrl-pod/paper.sqlite"
    run_settings.validate_tournament(run_settings.load(DEPLOY / folder / "retrain.toml").tournament)


# ---------------------------------------------------------------------- images


def test_image_runs_as_a_user_and_has_a_health_check() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE)
    assert [name for _, name in stages] == ["build", "runtime", "cpu", "cuda"]
    runtime = text[text.index("AS runtime") :]
    assert re.search(r"^USER 10001:10001$", runtime, re.MULTILINE)
    assert "HEALTHCHECK" in runtime
    assert "hatch_build.py" in text[: text.index("AS runtime")]  # compiles the kernels
    for folder in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in folder.split())


def test_requirements_of_the_check_agree_with_the_constraints() -> None:
    versions = pinned(ROOT / "constraints.txt")
    for name, version in pinned(DEPLOY / "check-requirements.txt").items():
        assert versions.get(name, version) == version


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers /200 with 200, and so on."""

    def do_GET(self) -> None:
        self.send_response(int(self.path[1:]))
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.slow
def test_health_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    healthcheck = load_module(DEPLOY / "docker" / "healthcheck.py")
    monkeypatch.delenv("FINRL_POD_HEALTH_URL", raising=False)
    assert healthcheck.main([]) == 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        assert healthcheck.main([f"{address}/200"]) == 0
        assert healthcheck.main([f"{address}/503"]) == 1
        monkeypatch.setenv("FINRL_POD_HEALTH_URL", f"{address}/503")
        assert healthcheck.main([]) == 1
        server.shutdown()
    assert healthcheck.main([f"{address}/200"]) == 1
    assert healthcheck.main(["http://example.com/"]) == 2
    assert "must be on this machine" in capsys.readouterr().err
