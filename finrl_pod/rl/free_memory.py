"""How much memory there is to be had."""

from __future__ import annotations

import os
from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
# Of what a container uses, files that were read or written: the kernel drops them when somebody asks for room.
CACHED = ("inactive_file ", "active_file ")


def available_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated: on a GPU its free memory, else the machine's, within a container's limit."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = _of_machine()
    try:
        most, used, parts = ((CGROUP / f"memory.{name}").read_text().strip() for name in ("max", "current", "stat"))
    except OSError:
        return free
    cached = sum(int(line.split()[1]) for line in parts.splitlines() if line.startswith(CACHED))
    return free if most == "max" else max(min(free, int(most) - int(used) + cached), 0)


def _of_machine() -> int:
    try:
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # not Linux: all there is
