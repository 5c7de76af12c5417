"""Agent snapshots on disk: exact round trips, damaged files are rejected, nothing is unpickled."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from finrl_pod.errors import RunError
from finrl_pod.tournament import snapshots
from finrl_pod.types import AgentSnapshot
from tests.tournament.sample_snapshots import snapshot

TENSORS = ("weights", "optimiser")


def assert_equal(a: AgentSnapshot, b: AgentSnapshot) -> None:
    for field in dataclasses.fields(AgentSnapshot):
        one, other = getattr(a, field.name), getattr(b, field.name)
        if field.name not in TENSORS:
            assert one == other, field.name
            continue
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            assert (tensor.dtype, tensor.shape) == (other[name].dtype, other[name].shape)
            assert tensor.numpy().tobytes() == other[name].numpy().tobytes(), name


@pytest.mark.parametrize("parent", [None, "g00s03"])
def test_round_trip_is_bit_exact(tmp_path: Path, parent: str | None) -> None:
    saved = snapshot(parent=parent)
    path = snapshots.save(tmp_path / "new" / "folder", saved)
    assert path == tmp_path / "new" / "folder" / "g00s00.json"
    assert_equal(snapshots.load(path), saved)


def test_views_are_saved_without_their_base_tensor(tmp_path: Path) -> None:
    flat = torch.arange(12.0).view(2, 6)
    saved = snapshot(weights={"a": flat[1, :2], "b": flat[1, 2:].view(2, 2).T})
    loaded = snapshots.load(snapshots.save(tmp_path, saved))
    torch.testing.assert_close(loaded.weights["a"], torch.tensor([6.0, 7.0]))
    torch.testing.assert_close(loaded.weights["b"], torch.tensor([[8.0, 10.0], [9.0, 11.0]]))


def test_saving_again_replaces_both_files(tmp_path: Path) -> None:
    snapshots.save(tmp_path, snapshot(seed=1))
    path = snapshots.save(tmp_path, snapshot(seed=2))
    assert_equal(snapshots.load(path), snapshot(seed=2))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["g00s00.json", "g00s00.safetensors"]


def edit_metadata(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        metadata = json.loads(path.read_text())
        change(metadata)
        path.write_text(json.dumps(metadata))

    return apply


def edit_tensors(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        file = path.with_suffix(".safetensors")
        file.write_bytes(change(file.read_bytes()))

    return apply


def replace_tensors(data: bytes) -> Callable[[Path], None]:
    """Replace the tensor file and update the recorded hash to match."""
    import hashlib

    def apply(path: Path) -> None:
        edit_tensors(lambda _: data)(path)
        edit_metadata(lambda metadata: metadata.update(tensors_sha256=hashlib.sha256(data).hexdigest()))(path)

    return apply


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no metadata": (lambda path: path.unlink(), "is missing"),
    "no tensors": (lambda path: path.with_suffix(".safetensors").unlink(), "cannot read snapshot"),
    "truncated metadata": (lambda path: path.write_text(path.read_text()[:-40]), "is not JSON"),
    "empty metadata": (lambda path: path.write_text(""), "is not JSON"),
    "metadata is not text": (lambda path: path.write_bytes(b"\xff\xfe\x00"), "is not JSON"),
    "metadata is a list": (lambda path: path.write_text("[1]"), "not a JSON object"),
    "metadata of another program": (lambda path: path.write_text('{"model": "x"}'), "is damaged"),
    "missing key": (edit_metadata(lambda metadata: metadata.pop("samples")), "is damaged"),
    "unknown key": (edit_metadata(lambda metadata: metadata.update(unknown=1)), "is damaged"),
    "normaliser of another shape": (edit_metadata(lambda metadata: metadata.update(normaliser=[1, 2])), "is damaged"),
    "truncated tensors": (edit_tensors(lambda data: data[:-1]), "is damaged"),
    "empty tensors": (edit_tensors(lambda data: b""), "is damaged"),
    "one bit flipped": (edit_tensors(lambda data: data[:-1] + bytes([data[-1] ^ 1])), "is damaged"),
    "not a tensor file": (replace_tensors(b"not tensors"), "is damaged"),
    "invalid header": (replace_tensors(b"\xff" * 64), "is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_reported(tmp_path: Path, damage: str) -> None:
    path = snapshots.save(tmp_path, snapshot())
    apply, message = DAMAGES[damage]
    apply(path)
    with pytest.raises(RunError) as caught:
        snapshots.load(path)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


class CreatesFile:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    marker = tmp_path / "mark"
    path = snapshots.save(tmp_path, snapshot())
    replace_tensors(pickle.dumps(CreatesFile(marker)))(path)
    with pytest.raises(RunError, match="is damaged"):
        snapshots.load(path)
    assert not marker.exists()


def test_snapshots_contain_no_pickle(tmp_path: Path) -> None:
    path = snapshots.save(tmp_path, snapshot())
    json.loads(path.read_text())
    data = path.with_suffix(".safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")  # safetensors: header length, JSON header, data
    header = json.loads(data[8 : 8 + size])
    assert set(header) == {"weights.encode_w", "weights.special", "optimiser.first", "optimiser.steps"}


def test_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write .*; name another folder"):
        snapshots.save(tmp_path / "file" / "below", snapshot())


def test_tensors_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    names = [f"agent{i:02d}" for i in range(20)]
    save_file({name: torch.zeros(1 + i % 3) for i, name in enumerate(reversed(names))}, tmp_path / "x.safetensors")
    assert list(snapshots.load_tensors(tmp_path / "x.safetensors")) == names
