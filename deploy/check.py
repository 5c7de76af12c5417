"""Check the files in deploy/: linters, schemas, and what every container must have. Run by `make check-deploy`.

Needs the packages of check-requirements.txt. kustomize is used if kubectl or kustomize is installed. Exits with 1 if a
check fails, and ends with a list of what no tool on this machine could check.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent
KUSTOMIZATIONS = ("base", "ray", "ray-gpu")
KUBERNETES_VERSION = "1.33"
NOT_RUN = (
    "building the images and running them",
    "starting the compose file",
    "applying the manifests to a cluster with the KubeRay operator",
    "training on a GPU in the CUDA image",
)


def main() -> int:
    """Run every check; returns the exit code."""
    scripts = Path(sys.executable).parent
    failures = [
        *run("hadolint", [str(scripts / "hadolint"), str(ROOT / "docker" / "Dockerfile")]),
        *run(
            "compose schema",
            [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec",
             str(ROOT / "compose" / "compose.yaml")],
        ),
    ]  # fmt: skip
    gaps = ["the RayCluster outside of its pods: the schema of KubeRay is not on this machine"]
    builder = next(([name, *words] for name, *words in (("kubectl", "kustomize"), ("kustomize", "build"))
                    if shutil.which(name)), None)  # fmt: skip
    if builder is None:
        gaps.append("kustomize: neither kubectl nor kustomize is installed; the files were checked one by one")
    for name in KUSTOMIZATIONS:
        folder = ROOT / "kubernetes" / name
        if builder is not None:
            build = subprocess.run([*builder, str(folder)], capture_output=True, text=True, check=False)
            failures += report(f"kustomize {name}", [build.stderr.strip()] if build.returncode else [])
            texts = [build.stdout] if build.returncode == 0 else []
        else:
            texts = [file.read_text() for file in sorted(folder.glob("*.yaml"))]
        manifests = [manifest for text in texts for manifest in yaml.safe_load_all(text)]
        failures += report(
            f"manifests {name}", [fault for manifest in manifests for fault in manifest_faults(manifest)]
        )
    for gap in (*gaps, *NOT_RUN):
        sys.stdout.write(f"NOT CHECKED  {gap}\n")
    sys.stdout.write(f"check-deploy: {len(failures)} faults\n")
    return 1 if failures else 0


def run(name: str, command: list[str]) -> list[str]:
    """Run a linter; returns what it found."""
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return report(name, [(process.stdout + process.stderr).strip()] if process.returncode else [])


def report(name: str, faults: list[str]) -> list[str]:
    """Print the outcome of a check; returns its faults."""
    sys.stdout.write(f"{'FAILED' if faults else 'ok':<12} {name}\n")
    for fault in faults:
        sys.stdout.write(f"             {fault}\n")
    return faults


def manifest_faults(manifest: Any) -> Iterator[str]:
    """Violations of the Kubernetes schema, and containers that lack what ours must have."""
    import kubernetes_validate

    if not isinstance(manifest, dict) or manifest.get("kind") in (None, "Kustomization"):
        return  # settings of kustomize
    name = f"{manifest['kind']} {manifest.get('metadata', {}).get('name')}"
    for document in checkable(manifest):
        try:
            kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{name}: {'.'.join(map(str, error.path))}: {error.message}"
        except kubernetes_validate.SchemaNotFoundError as error:
            yield f"{name}: {error.message}"
    for spec in pod_specs(manifest):
        yield from (f"{name}: {fault}" for fault in pod_faults(spec))


def checkable(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The manifest, or pods with the templates of a custom resource, if Kubernetes does not have its schema."""
    if not manifest["apiVersion"].startswith("ray.io/"):
        return [manifest]
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "template", **template.get("metadata", {})},
         "spec": template["spec"]}
        for template in templates(manifest)
    ]  # fmt: skip


def templates(value: Any) -> Iterator[dict[str, Any]]:
    """All pod templates in a manifest."""
    if isinstance(value, dict):
        if "containers" in value.get("template", {}).get("spec", {}):
            yield value["template"]
        for item in value.values():
            yield from templates(item)
    elif isinstance(value, list):
        for item in value:
            yield from templates(item)


def pod_specs(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Specifications of all pods that a manifest creates."""
    return [template["spec"] for template in templates(manifest)]


def pod_faults(spec: dict[str, Any]) -> Iterator[str]:
    """What the containers of a pod lack: limits, probes, restrictions; secrets that are not referred to."""
    context = spec.get("securityContext", {})
    if not (context.get("runAsNonRoot") and context.get("runAsUser")):
        yield "the pod must set runAsNonRoot and runAsUser"
    if spec.get("automountServiceAccountToken") is not False:
        yield "the pod must not mount a service account's token"
    for container in spec["containers"]:
        name = container["name"]
        resources = container.get("resources", {})
        for kind in ("requests", "limits"):
            if not {"cpu", "memory"} <= set(resources.get(kind, {})):
                yield f"container {name} must have {kind} of cpu and memory"
        restrictions = container.get("securityContext", {})
        if (
            restrictions.get("allowPrivilegeEscalation") is not False
            or restrictions.get("readOnlyRootFilesystem") is not True
        ):
            yield f"container {name} must forbid privilege escalation and writes to its root file system"
        if restrictions.get("capabilities", {}).get("drop") != ["ALL"]:
            yield f"container {name} must drop all capabilities"
        if spec.get("restartPolicy") != "Never" and "livenessProbe" not in container:
            yield f"container {name} must have a liveness probe"
        for variable in container.get("env", []):
            secret = any(word in variable["name"] for word in ("KEY", "SECRET", "TOKEN", "PASSWORD", "URLS"))
            if secret and "value" in variable:
                yield f"container {name} must refer to a secret for {variable['name']}: {json.dumps(variable)}"


if __name__ == "__main__":
    sys.exit(main())
