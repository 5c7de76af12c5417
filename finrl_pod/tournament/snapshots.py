"""Agents on disk: weights and optimiser as safetensors, the rest as JSON. No pickle is ever read."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finrl_pod import user_files
from finrl_pod.errors import RunError
from finrl_pod.files import read_json, write_bytes, write_json
from finrl_pod.types import AgentSnapshot, Normaliser, Tensor


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save as to_bytes

    write_bytes(path, to_bytes({name: x.cpu().contiguous() for name, x in tensors.items()}))


def decode_tensors(data: bytes) -> dict[str, Tensor]:
    """Return name -> tensor on the CPU, in the order of the names. Raises SafetensorError for other bytes.

    safetensors returns the tensors in another order in each process.
    """
    from safetensors.torch import load as from_bytes

    tensors: dict[str, Tensor] = from_bytes(data)
    return dict(sorted(tensors.items()))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read name -> tensor, in the order of the names. Raises RunError if the file is missing or damaged."""
    from safetensors import SafetensorError

    try:
        return decode_tensors(path.read_bytes())
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from None
    except SafetensorError:
        raise RunError(f"{path} is damaged: not a safetensors file; restore it or start a new run") from None


def snapshot_parts(snapshot: AgentSnapshot) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Facts of a snapshot as JSON values, and its tensors."""
    tensors = {f"weights.{name}": value.contiguous() for name, value in snapshot.weights.items()}
    tensors |= {f"optimiser.{name}": value.contiguous() for name, value in snapshot.optimiser.items()}
    facts = {
        field.name: getattr(snapshot, field.name)
        for field in dataclasses.fields(snapshot)
        if field.name not in ("weights", "optimiser", "normaliser")
    }
    facts["normaliser"] = dataclasses.asdict(snapshot.normaliser)
    return facts, tensors


def snapshot_from_parts(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> AgentSnapshot:
    """Inverse of `snapshot_parts`. Raises KeyError, TypeError or ValueError for other values."""
    fields = dict(facts)
    norm = fields.pop("normaliser")
    normaliser = Normaliser(tuple(norm["feature_names"]), tuple(norm["mean"]), tuple(norm["std"]), float(norm["clip"]))
    return AgentSnapshot(
        weights={name.removeprefix("weights."): x for name, x in tensors.items() if name.startswith("weights.")},
        optimiser={name.removeprefix("optimiser."): x for name, x in tensors.items() if name.startswith("optimiser.")},
        normaliser=normaliser,
        spec=_tuples(fields.pop("spec")),
        **fields,
    )


def save(folder: Path, snapshot: AgentSnapshot) -> Path:
    """Write `ID.safetensors`, then `ID.json` with its hash. Returns the path of the JSON file."""
    from safetensors.torch import save as to_bytes

    facts, tensors = snapshot_parts(snapshot)
    data = to_bytes(tensors)
    write_bytes(folder / f"{snapshot.id}.safetensors", data)
    facts["tensors_sha256"] = hashlib.sha256(data).hexdigest()
    if files := user_files.kept_files(facts):
        facts["own_files"] = files
    path = folder / f"{snapshot.id}.json"
    write_json(path, facts)
    return path


def load(path: Path) -> AgentSnapshot:
    """Read a snapshot from the path of its JSON file. Raises RunError if it is missing or damaged."""
    from safetensors import SafetensorError

    facts = read_json(path)
    user_files.keep(facts.pop("own_files", {}))
    weights_file = path.with_suffix(".safetensors")
    try:
        data = weights_file.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read snapshot {weights_file}: {error.strerror}") from None
    damage = RunError(f"snapshot {weights_file} is damaged: its hash differs from the saved one; restore it")
    if hashlib.sha256(data).hexdigest() != facts.pop("tensors_sha256", None):
        raise damage
    try:
        return snapshot_from_parts(facts, decode_tensors(data))
    except (SafetensorError, KeyError, TypeError, ValueError):
        raise damage from None


def _tuples(value: Any) -> Any:
    """Replace lists by tuples: JSON has none."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
