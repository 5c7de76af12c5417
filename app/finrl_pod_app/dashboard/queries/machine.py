"""What the machine is doing now: processors, memory, disks, graphics cards."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil

GIB = 2**30
LOOK = 0.2  # seconds: since the last look would be no time at all at first, and where two pages are open
_GPU_FIELDS = ("index", "name", "utilization.gpu", "memory.used", "memory.total", "temperature.gpu")
_GPU_SECONDS = 5.0  # nvidia-smi of a driver that hangs is given up


@dataclass(frozen=True)
class Load:
    """cpu: share of all cores in use. memory: of all, in bytes. own: bytes of this process."""

    cores: int
    cpu: float
    memory_used: int
    memory_total: int
    own: int


def load() -> Load:
    """How busy the machine is."""
    memory = psutil.virtual_memory()
    own = psutil.Process().memory_info().rss
    cpu = psutil.cpu_percent(interval=LOOK) / 100
    return Load(psutil.cpu_count() or 1, cpu, memory.total - memory.available, memory.total, own)


def disks(places: dict[str, Path]) -> pd.DataFrame:
    """A row for each place: what, path, free and total in GiB, used as a share. A folder that is not there yet is told
    by the first one above it that is."""
    rows = []
    for what, place in places.items():
        there = next(path for path in (place.absolute(), *place.absolute().parents) if path.exists())
        usage = shutil.disk_usage(there)
        rows.append((what, str(place), usage.free / GIB, usage.total / GIB, 1 - usage.free / usage.total))
    return pd.DataFrame(rows, columns=["what", "path", "free", "total", "used"])


def gpus() -> pd.DataFrame:
    """A row for each NVIDIA card: card, use as a share, memory used and total in GiB, temperature in °C. Empty where
    there is none, or no nvidia-smi that answers."""
    program = shutil.which("nvidia-smi")
    text = ""
    if program is not None:
        asked = [program, f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
        try:
            text = subprocess.run(asked, capture_output=True, text=True, timeout=_GPU_SECONDS, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            text = ""
    return gpu_table(list(csv.reader(io.StringIO(text), skipinitialspace=True)))


def gpu_table(rows: Sequence[Sequence[str]]) -> pd.DataFrame:
    """The answer of nvidia-smi as a table; a field that a card does not have ("[N/A]") is NaN."""
    found = []
    for row in rows:
        if len(row) != len(_GPU_FIELDS):
            continue
        use, used, total, heat = (pd.to_numeric(field, errors="coerce") for field in row[2:])
        found.append((f"{row[0]}: {row[1]}", use / 100, used / 1024, total / 1024, heat))
    return pd.DataFrame(found, columns=["card", "use", "used", "total", "temperature"])
