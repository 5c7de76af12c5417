"""Check for outside information: files and connections that user code opens, and implausible growth."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from finrl_pod.evaluate.audit.pipeline import Finding
from finrl_pod.evaluate.audit.sensitivity import Sensitivity
from finrl_pod.opened_files import OpenedFile
from finrl_pod.user_files import imported_modules, written_path

CHECK = "external data"
ABSURD_GROWTH = 1.1  # annual log growth: the account triples in a year
# Functions that open files in C, C++ or Rust, where Python's audit hooks see nothing.
UNSEEN_READERS = {
    *(
        "read_parquet",
        "scan_parquet",
        "ParquetFile",
        "ParquetDataset",
        "read_feather",
        "read_orc",
        "read_hdf",
        "HDFStore",
    ),
    *("read_ipc", "scan_ipc", "scan_csv", "scan_ndjson", "scan_delta", "open_dataset", "memory_map"),
}
UNSEEN_MODULES = {"duckdb", "fastparquet", "h5py", "netCDF4", "pyreadr", "tables", "zarr"}


def opened_file_findings(opened: Iterable[OpenedFile]) -> list[Finding]:
    """A warning for each file or connection that user code opened."""
    readers: dict[str, list[str]] = {}
    for entry in opened:
        names = readers.setdefault(entry.target, [])
        if (name := written_path(Path(entry.reader)).name) not in names:
            names.append(name)
    return [
        Finding(
            CHECK,
            "warn",
            target,
            f"{', '.join(names)} open{'s' * (len(names) == 1)} {target}, which may hold information from after the bar "
            "of a decision.",
        )
        for target, names in readers.items()
    ]


def unseen_reader_findings(files: Mapping[str, str]) -> list[Finding]:
    """A warning for each user file that calls functions whose opened files are not seen. files: text by name."""
    findings = []
    for name, text in files.items():
        calls = sorted(_unseen_readers(text))
        if calls:
            file = written_path(Path(name)).name
            message = (
                f"{file} uses {', '.join(calls)}, whose files this check cannot see; they may hold information from "
                "after the bar of a decision."
            )
            findings.append(Finding(CHECK, "warn", file, message))
    return findings


def _unseen_readers(text: str) -> set[str]:
    """Functions and modules that a file uses to open files unseen; none if it is not Python."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:
        return set()
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)} & UNSEEN_READERS
    names |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names} & UNSEEN_READERS
    return names | (imported_modules(text) & UNSEEN_MODULES)


def growth_findings(name: str, of: Sensitivity, cost: float) -> list[Finding]:
    """A warning if a strategy grows at an absurd rate at a cost in basis points."""
    growth = dict(zip(of.costs, of.growth, strict=True)).get(cost, of.growth[0])
    if growth <= ABSURD_GROWTH:
        return []
    message = (
        f"{name} multiplies the account by {math.exp(growth):.1f} a year, and no known strategy of this kind does: "
        "look for information from the future."
    )
    return [Finding(CHECK, "warn", "growth", message, value=growth)]
