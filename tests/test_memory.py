"""Tests of finrl_pod.memory."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Blocks of 4 MiB, which glibc would map apart by default. The last block is larger than any hole that the others left.
SCRIPT = """
import torch
from finrl_pod.memory import keep_freed_memory, release_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

class Cycle:
    def __init__(self):
        self.itself, self.block = self, torch.ones(2**20)

assert keep_freed_memory()
blocks = [torch.ones(2**20) for _ in range(32)]
cycles = [Cycle() for _ in range(16)]
used = resident()
del blocks, cycles
kept = resident()
release_freed_memory()
released = resident()
torch.ones(2**26)
print(used - kept, used - released, resident() - released)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep what they keep")
def test_freed_memory_is_kept_until_it_is_released() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    while_kept, after_release, after_another_block = (float(word) for word in done.stdout.split())
    assert while_kept < 16
    assert after_release > 160
    assert after_another_block < 2
