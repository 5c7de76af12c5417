"""Which line of the project runs an operation of torch."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import finrl_pod_envs

import finrl_pod
from benchmarks.harness.rows import FOLDER

OWN_FOLDERS = (*(str(Path(str(package.__file__)).parent) for package in (finrl_pod, finrl_pod_envs)), str(FOLDER))


def innermost_frame(excluded_file: str) -> FrameType | None:
    """The innermost frame of the project outside a file; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(OWN_FOLDERS) and path not in (excluded_file, __file__):
            return frame
        frame = frame.f_back
    return None
