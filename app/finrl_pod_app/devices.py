"""Where to train: the device that a name stands for."""

from __future__ import annotations

import torch

from finrl_pod.errors import EnvironmentLacks, InputError


def pick_device(name: str) -> torch.device:
    """auto, cpu or cuda. Raises InputError for another name, EnvironmentLacks for a CUDA device that is not there."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise EnvironmentLacks(
            "device cuda was asked for but this machine has none that torch can use; use --device cpu"
        )
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
