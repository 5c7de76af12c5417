"""Builds a release in dist/ and checks it: wheel, sdist, SBOM, licences, known vulnerabilities and SHA256SUMS.

Run by `make release` in an environment with the tools of release/requirements.txt.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from importlib import util
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
BIN = Path(sys.executable).parent
NEEDED = ("finrl_pod/py.typed", "finrl_pod/data/sample/LICENSE", "finrl_pod/data/us74/LICENSE")
# Licences of dependencies that ask for nothing but their notice, or for changes of their own files only.
PERMISSIVE = ("MIT", "BSD", "Apache", "ISC", "PSF", "Python Software Foundation", "MPL", "Mozilla", "Unlicense", "Zlib")
PERMISSIVE += ("Public Domain", "NCSA", "HPND", "CNRI", "0BSD", "CC0", "Zope")


def run(*command: str | Path, check: bool = True, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command; stop with its output if it fails."""
    process = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, check=False)
    if check and process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {process.returncode}\n{process.stdout}{process.stderr}")
    if not quiet:
        sys.stdout.write(process.stdout)
    return process


def build() -> Path:
    """Build sdist and wheel and check metadata, contents and platform tag. Returns the wheel."""
    DIST.mkdir(exist_ok=True)
    for former_file in DIST.iterdir():
        former_file.unlink()
    run(BIN / "python", "-m", "build", "--outdir", DIST, quiet=True)
    (wheel,) = DIST.glob("*.whl")
    run(BIN / "twine", "check", "--strict", *sorted(DIST.iterdir()))
    names = zipfile.ZipFile(wheel).namelist()
    if missing := [name for name in NEEDED if name not in names]:
        sys.exit(f"{wheel.name} lacks {', '.join(missing)}")
    check_kernels(wheel)
    if "x86_64" in wheel.name:
        tag = wheel.name.removesuffix(".whl").rsplit("-", 1)[1]
        output = run(BIN / "auditwheel", "show", wheel, quiet=True).stdout
        if tag not in output:
            sys.exit(f"auditwheel does not confirm the platform tag {tag}:\n{output}")
    return wheel


def check_kernels(wheel: Path) -> None:
    """On Linux on x86-64, stop unless code of a wheel in another folder finds a library of each source and level."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return
    with tempfile.TemporaryDirectory(prefix="finrl-pod-wheel-") as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        spec = util.spec_from_file_location("unpacked_prebuild", Path(folder) / "finrl_pod/native/prebuild.py")
        assert spec is not None
        assert spec.loader is not None
        prebuild = util.module_from_spec(spec)
        spec.loader.exec_module(prebuild)
        sources = sorted(Path(folder).rglob("*.cpp"))
        names = [prebuild.prebuilt_name(source, level) for source in sources for level in prebuild.LEVELS]
        missing = [name for name in names if not (prebuild.PREBUILT / name).exists()]
    if missing or not names:
        sys.exit(f"{wheel.name} lacks {len(missing)} of {len(names)} prebuilt kernels: {', '.join(missing)}")


def check_installed_kernels(python: Path, wheel: Path) -> None:
    """On Linux on x86-64, stop unless the installed wheel, without a compiler, loads a kernel of each source."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return
    environment = {"PATH": str(python.parent), "CXX": "", "HOME": str(python.parents[1])}
    process = subprocess.run(
        [python.parent / "finrl-pod", "doctor", "--json"], env=environment, capture_output=True, text=True, check=False
    )
    findings = json.loads(process.stdout or "{}").get("findings", [])
    kernels = next((finding for finding in findings if finding["name"] == "kernels"), {})
    count = sum(name.endswith(".cpp") for name in zipfile.ZipFile(wheel).namelist())
    if (kernels.get("found"), kernels.get("expected")) != (count, count):
        sys.exit(f"the installed wheel does not load its {count} kernels: {kernels or process.stderr}")
    sys.stdout.write(f"kernels: {count} of {count} load in an empty environment\n")


def describe_dependencies(wheel: Path) -> None:
    """Install the wheel into an empty environment and write SBOM, licences and, if possible, vulnerabilities."""
    with tempfile.TemporaryDirectory(prefix="finrl-pod-release-") as folder:
        python = Path(folder) / "venv/bin/python"
        run(sys.executable, "-m", "venv", python.parents[1])
        run(python, "-m", "pip", "install", "--quiet", f"{wheel}[sources,indicators,paper,dashboard]", quiet=True)
        check_installed_kernels(python, wheel)
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools", quiet=True)
        bom = DIST / "sbom.json"
        run(BIN / "cyclonedx-py", "environment", "--sv", "1.6", "--output-reproducible", "-o", bom, python, quiet=True)
        licences(python)
        audit(python)


def licences(python: Path) -> None:
    """Write licences.md: counts, what is not permissive, and every package."""
    form = ("--format=json", "--from=mixed", "--with-urls")
    packages = json.loads(run(BIN / "pip-licenses", f"--python={python}", *form, quiet=True).stdout)
    packages = sorted((p for p in packages if p["Name"] != "finrl-pod"), key=lambda p: p["Name"].lower())
    short = {p["Name"]: p["License"].splitlines()[0][:80] for p in packages}
    licences_to_read = [
        name for name, text in short.items() if not any(known.lower() in text.lower() for known in PERMISSIVE)
    ]
    lines = ["# Licences of dependencies", "", "Extras sources, indicators, paper and dashboard included.", ""]
    lines += [f"- {count} × {text}" for text, count in Counter(short.values()).most_common()]
    lines += ["", f"Not on the list of permissive licences, to be read: {', '.join(licences_to_read) or 'none'}.", ""]
    lines += ["| package | version | licence |", "|---|---|---|"]
    lines += [f"| [{p['Name']}]({p['URL']}) | {p['Version']} | {short[p['Name']]} |" for p in packages]
    (DIST / "licences.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.stdout.write(f"licences: {len(packages)} packages, to be read: {', '.join(licences_to_read) or 'none'}\n")


def audit(python: Path) -> None:
    """Write audit.json, known vulnerabilities; only a note where their database cannot be reached."""
    (packages,) = (python.parents[1] / "lib").glob("python*/site-packages")
    command = (BIN / "pip-audit", "--path", packages, "--format", "json", "--progress-spinner", "off")
    process = run(*command, check=False, quiet=True)
    try:
        report = json.loads(process.stdout)
    except ValueError:
        sys.stdout.write("audit: NOT DONE, the database of vulnerabilities cannot be reached\n")
        return
    (DIST / "audit.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    vulnerabilities = [
        f"{p['name']} {p['version']}: {v['id']}" for p in report["dependencies"] for v in p.get("vulns", [])
    ]
    sys.stdout.write(f"audit: {len(vulnerabilities)} known vulnerabilities {' '.join(vulnerabilities)}\n")


def checksums() -> None:
    """Write SHA256SUMS of everything else in dist/."""
    files = sorted(path for path in DIST.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]
    (DIST / "SHA256SUMS").write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    describe_dependencies(build())
    checksums()
