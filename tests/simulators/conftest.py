"""Tests that need what `make test-simulators` installs; a run of all tests leaves them out where it is missing."""

from __future__ import annotations

import importlib.util

collect_ignore = [] if importlib.util.find_spec("mujoco_warp") else ["test_mujoco_warp.py"]
