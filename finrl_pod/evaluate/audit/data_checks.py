"""Checks of data: flaws of the prices, files and connections that user code opens, and implausible growth."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from finrl_pod.data.dates import stamp
from finrl_pod.data.flaws import check, sentences
from finrl_pod.evaluate.audit.pipeline import Finding
from finrl_pod.evaluate.audit.sensitivity import Sensitivity
from finrl_pod.opened_files import IMPORTED_PACKAGES, OpenedFile
from finrl_pod.types import Panel
from finrl_pod.user_files import imported_modules, written_path

CHECK = "data"
EXTERNAL_CHECK = "external data"
ABSURD_GROWTH = 1.1  # annual log growth: the account triples in a year
# Functions that open files in C, C++ or Rust, where audit hooks of Python see nothing.
UNSEEN_READERS = {
    "read_parquet", "scan_parquet", "ParquetFile", "ParquetDataset", "read_feather", "read_orc", "read_hdf", "HDFStore",
    "read_ipc", "scan_ipc", "scan_csv", "scan_ndjson", "scan_delta", "open_dataset", "memory_map",
}  # fmt: skip
UNSEEN_MODULES = {"duckdb", "fastparquet", "h5py", "netCDF4", "pyreadr", "tables", "zarr"}


def check_data(panel: Panel) -> list[Finding]:
    """Report flaws that the panel states or that checks find; a broken rule is a failure."""
    flaws = check(panel)
    hard = [Finding(CHECK, "fail", flaw.symbol or "prices", flaw.message) for flaw in flaws if flaw.hard]
    soft = {flaw.message: flaw for flaw in flaws if not flaw.hard}
    messages = dict.fromkeys((*panel.flaws, *sentences(flaws)))
    warnings = []
    for text in filter(None, messages):
        flaw = soft.get(text)
        part = "survivorship" if text.startswith("Survivorship") else (flaw.symbol if flaw else None) or "prices"
        bar = None if flaw is None or flaw.time is None else stamp(flaw.time, panel.bar)
        warnings.append(Finding(CHECK, "warn", part, text, bar))
    return hard + warnings or [Finding(CHECK, "pass", "prices", "The data has no known flaws.")]


def opened_file_findings(files: Iterable[OpenedFile], parts: Iterable[str] = ()) -> list[Finding]:
    """A warning for each file or connection that user code opened. parts: references to the audited parts."""
    readers: dict[str, dict[str, None]] = {}
    for entry in files:
        module = entry.module if entry.module.partition(".")[0] in IMPORTED_PACKAGES else entry.reader
        readers.setdefault(entry.target, {}).update(dict.fromkeys(_names_in(module, parts, entry.part)))
    return [
        Finding(
            EXTERNAL_CHECK,
            "warn",
            target,
            f"{', '.join(names)} open{'s' * (len(names) == 1)} {target}, which may hold information from after the bar "
            "of a decision.",
        )
        for target, names in readers.items()
    ]


def _names_in(module: str, parts: Iterable[str], name: str = "") -> list[str]:
    """file.py:Name of the part called `name` in a module or file; of all its parts if none is; else the file."""
    file = written_path(Path(module)).name
    references = {part.rpartition(":")[::2] for part in parts}
    names = sorted(f"{file}:{part}" for path, part in references if written_path(Path(path)).name == file)
    own_name = f"{file}:{name}" if name else file
    return [own_name] if own_name in names or not names else names


def unseen_reader_findings(files: Mapping[str, str], parts: Iterable[str] = ()) -> list[Finding]:
    """A warning for each user file that calls functions whose opened files are not seen. files: text by name."""
    findings = []
    for name, text in files.items():
        calls = sorted(_unseen_readers(text))
        if calls:
            names = _names_in(name, parts)
            message = (
                f"{', '.join(names)} use{'s' * (len(names) == 1)} {', '.join(calls)}, whose files this check cannot "
                "see; they may hold information from after the bar of a decision."
            )
            findings.append(Finding(EXTERNAL_CHECK, "warn", names[0].partition(":")[0], message))
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


def growth_findings(name: str, sensitivity: Sensitivity, cost: float) -> list[Finding]:
    """A warning if a strategy grows at an absurd rate at a cost in basis points."""
    growth = dict(zip(sensitivity.costs, sensitivity.growth, strict=True)).get(cost, sensitivity.growth[0])
    if growth <= ABSURD_GROWTH:
        return []
    message = (
        f"{name} multiplies the account by {math.exp(growth):.1f} a year, and no known strategy of this kind does: "
        "look for information from the future."
    )
    return [Finding(EXTERNAL_CHECK, "warn", "growth", message, value=growth)]
