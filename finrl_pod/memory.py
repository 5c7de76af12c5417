"""Memory available for tensors, and tuning of the glibc allocator for training loops.

Imports no torch, for the store: commands that only list something start at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import mmap
import os
import platform
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MIB = 2**20
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_THRESHOLD = -3  # of malloc.h
KEPT_BYTES = 1024 * MIB
RETURNED_BYTES = 16 * MIB  # freed blocks of this size return to the system; smaller ones would cost page faults
RELEASE_SECONDS = 0.02  # between releases of mapped pages: each of them visits all mappings
_mappings: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_last_release = -math.inf  # by the clock of `time.monotonic`


def keep_freed_memory() -> bool:
    """Let glibc keep up to 1 GiB of freed memory for later tensors. Returns whether that could be set.

    By default glibc returns freed blocks of a megabyte to the system, and a training loop on the CPU allocates
    some megabytes per operation, spends much of its time on page faults.
    """
    return _set_allocator(KEPT_BYTES, 64 * MIB)


def release_freed_memory() -> None:
    """Return freed memory to the system and undo `keep_freed_memory`; for the end of a stage that used much memory.

    Tensors in reference cycles are freed too. Later blocks of `RETURNED_BYTES` or more are mapped apart and returned
    when they are freed, so that no stage holds what another used. Pages of shared mappings that
    `release_with_freed_memory` was called with are released too; they are read from their file when used again.
    """
    gc.collect()
    _release_mapped_pages()
    if _set_allocator(RETURNED_BYTES, 0):
        ctypes.CDLL(None).malloc_trim(0)


def release_mapped_pages() -> None:
    """Let the pages of mapped files leave the process, for example after a block of a table was read to make another.

    Does nothing within `RELEASE_SECONDS` after the last release: call it after each block, and after the last.
    """
    if time.monotonic() > _last_release + RELEASE_SECONDS:
        _release_mapped_pages()


def _release_mapped_pages() -> None:
    global _last_release
    _last_release = time.monotonic()
    if hasattr(mmap, "MADV_DONTNEED"):
        for mapping in _mappings:
            mapping.madvise(mmap.MADV_DONTNEED)


def release_with_freed_memory(mapping: mmap.mmap) -> None:
    """Let `release_freed_memory` release the pages of a shared mapping of a file."""
    _mappings.add(mapping)


def _set_allocator(threshold: int, padding: int) -> bool:
    """Set the size from which glibc maps blocks apart and keeps freed memory, and what it adds to a request."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((M_MMAP_THRESHOLD, threshold), (M_TRIM_THRESHOLD, threshold), (M_TOP_PAD, padding))
    results = [mallopt(ctypes.c_int(name), ctypes.c_int(value)) for name, value in settings]
    return all(results)


MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
# File cache within the usage of a container: the kernel frees it on demand.
CACHED = ("inactive_file ", "active_file ")


def available_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated: free memory of the GPU or machine, within the container limit."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    free = _machine_bytes()
    try:
        limit, usage, statistics = (
            (CGROUP / f"memory.{name}").read_text().strip() for name in ("max", "current", "stat")
        )
    except OSError:
        return free
    cached = sum(int(line.split()[1]) for line in statistics.splitlines() if line.startswith(CACHED))
    return free if limit == "max" else max(min(free, int(limit) - int(usage) + cached), 0)


def _machine_bytes() -> int:
    with contextlib.suppress(OSError):
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # not Linux: total memory
