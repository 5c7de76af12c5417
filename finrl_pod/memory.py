"""Memory: how much is available, and how the C library keeps what tensors have freed."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from pathlib import Path

import torch

MIB = 2**20
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of malloc.h
KEPT = 1024 * MIB


@functools.cache
def keep_freed_memory() -> bool:
    """Let the process keep up to a GiB of freed memory for its next tensors; whether that could be set.

    By default glibc gives a freed megabyte back to the system, and a training loop on a CPU, which frees and takes
    some megabytes at every operation, then spends a good part of its time on page faults.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((M_MMAP_THRESHOLD, KEPT), (M_TRIM_THRESHOLD, KEPT), (M_TOP_PAD, 64 * MIB))
    done = [mallopt(ctypes.c_int(name), ctypes.c_int(value)) for name, value in settings]
    return all(done)


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
