"""Load of the machine: processors, memory, disks and GPUs."""

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
# A fixed interval: the default of psutil, the time since the last call, is zero at first and wrong with two open pages.
CPU_INTERVAL = 0.2  # seconds
_GPU_FIELDS = ("index", "name", "utilization.gpu", "memory.used", "memory.total", "temperature.gpu")
_GPU_TIMEOUT = 5.0  # seconds, for nvidia-smi of a driver that hangs


@dataclass(frozen=True)
class Load:
    """Load of the machine. cpu: share of all cores in use. memory_used, memory_total, own (this process): bytes."""

    cores: int
    cpu: float
    memory_used: int
    memory_total: int
    own: int


def machine_load() -> Load:
    """The current load; takes `CPU_INTERVAL` seconds."""
    memory = psutil.virtual_memory()
    process_memory = psutil.Process().memory_info().rss
    cpu = psutil.cpu_percent(interval=CPU_INTERVAL) / 100
    return Load(psutil.cpu_count() or 1, cpu, memory.total - memory.available, memory.total, process_memory)


def disk_usage(folders: dict[str, Path]) -> pd.DataFrame:
    """One row per folder: what, path, free and total in GiB, used as a share."""
    rows = []
    for contents, folder in folders.items():  # one that does not exist yet is measured at its nearest existing parent
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        usage = shutil.disk_usage(existing)
        rows.append((contents, str(folder), usage.free / GIB, usage.total / GIB, 1 - usage.free / usage.total))
    return pd.DataFrame(rows, columns=["what", "path", "free", "total", "used"])


def gpu_table() -> pd.DataFrame:
    """One row per NVIDIA GPU: card, use as a share, memory used and total in GiB, temperature in °C.

    Empty without a GPU or without an nvidia-smi that answers.
    """
    command = ["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=_GPU_TIMEOUT, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        text = ""
    return parse_gpu_rows(list(csv.reader(io.StringIO(text), skipinitialspace=True)))


def parse_gpu_rows(rows: Sequence[Sequence[str]]) -> pd.DataFrame:
    """The rows of nvidia-smi as `gpu_table` gives them; fields that a GPU does not report ("[N/A]") are NaN."""
    gpus = []
    for row in rows:
        if len(row) != len(_GPU_FIELDS):
            continue
        use, memory_used, total, temperature = (pd.to_numeric(field, errors="coerce") for field in row[2:])
        gpus.append((f"{row[0]}: {row[1]}", use / 100, memory_used / 1024, total / 1024, temperature))
    return pd.DataFrame(gpus, columns=["card", "use", "used", "total", "temperature"])
