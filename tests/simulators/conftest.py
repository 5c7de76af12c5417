"""Tests that need what `make test-simulators` installs, each framework in a separate environment.

A run of all tests leaves out those whose framework is not installed.
"""

from __future__ import annotations

import importlib.util

NEEDS = {
    "test_mujoco_warp.py": "mujoco_warp",
    "test_rsl_rl.py": "rsl_rl",
    "test_rl_games.py": "rl_games",
    "test_skrl.py": "skrl",
}
collect_ignore = [file for file, package in NEEDS.items() if importlib.util.find_spec(package) is None]
