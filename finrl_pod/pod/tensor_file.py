"""Named tensors in one safetensors file, whole or not there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from finrl_pod.errors import RunError
from finrl_pod.files import write_bytes
from finrl_pod.types import Tensor


def save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write name -> tensor."""
    from safetensors.torch import save as to_bytes

    write_bytes(path, to_bytes({name: x.cpu().contiguous() for name, x in tensors.items()}))


def load(path: Path) -> dict[str, Tensor]:
    """Read them on the CPU. Raises RunError when the file is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    try:
        tensors: dict[str, Tensor] = from_bytes(path.read_bytes())
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from None
    except SafetensorError:
        raise RunError(f"{path} is damaged: it is no file of tensors; restore it or start a new run") from None
    return tensors
