"""How the C library keeps memory that tensors have given back."""

from __future__ import annotations

import ctypes
import functools
import platform

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
