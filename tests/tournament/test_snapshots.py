"""Agents on disk: nothing is lost, nothing damaged is used, nothing is unpickled."""

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
from tests.tournament.agents import snapshot

TENSORS = ("weights", "optimiser")


def same(a: AgentSnapshot, b: AgentSnapshot) -> None:
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
def test_an_agent_comes_back_bit_for_bit(tmp_path: Path, parent: str | None) -> None:
    made = snapshot(parent=parent)
    path = snapshots.save(tmp_path / "new" / "folder", made)
    assert path == tmp_path / "new" / "folder" / "g00s00.json"
    same(snapshots.load(path), made)


def test_views_of_a_larger_tensor_are_saved_as_themselves(tmp_path: Path) -> None:
    flat = torch.arange(12.0).view(2, 6)
    made = snapshot(weights={"a": flat[1, :2], "b": flat[1, 2:].view(2, 2).T})
    back = snapshots.load(snapshots.save(tmp_path, made))
    torch.testing.assert_close(back.weights["a"], torch.tensor([6.0, 7.0]))
    torch.testing.assert_close(back.weights["b"], torch.tensor([[8.0, 10.0], [9.0, 11.0]]))


def test_saving_again_replaces_both_files(tmp_path: Path) -> None:
    snapshots.save(tmp_path, snapshot(seed=1))
    path = snapshots.save(tmp_path, snapshot(seed=2))
    same(snapshots.load(path), snapshot(seed=2))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["g00s00.json", "g00s00.safetensors"]


def edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        facts = json.loads(path.read_text())
        change(facts)
        path.write_text(json.dumps(facts))

    return apply


def weights(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        file = path.with_suffix(".safetensors")
        file.write_bytes(change(file.read_bytes()))

    return apply


def as_saved(data: bytes) -> Callable[[Path], None]:
    """Tensors that are not what was saved, though the hash says they are."""
    import hashlib

    def apply(path: Path) -> None:
        weights(lambda _: data)(path)
        edit(lambda facts: facts.update(tensors_sha256=hashlib.sha256(data).hexdigest()))(path)

    return apply


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no facts": (lambda path: path.unlink(), "is missing"),
    "no tensors": (lambda path: path.with_suffix(".safetensors").unlink(), "cannot read snapshot"),
    "facts cut short": (lambda path: path.write_text(path.read_text()[:-40]), "is not JSON"),
    "facts empty": (lambda path: path.write_text(""), "is not JSON"),
    "facts of no text": (lambda path: path.write_bytes(b"\xff\xfe\x00"), "is not JSON"),
    "facts are a list": (lambda path: path.write_text("[1]"), "not a JSON object"),
    "facts of another program": (lambda path: path.write_text('{"model": "x"}'), "is damaged"),
    "facts without a key": (edit(lambda facts: facts.pop("samples")), "is damaged"),
    "facts with a key too many": (edit(lambda facts: facts.update(mood="good")), "is damaged"),
    "a normaliser of another shape": (edit(lambda facts: facts.update(normaliser=[1, 2])), "is damaged"),
    "tensors cut short": (weights(lambda data: data[:-1]), "is damaged"),
    "tensors empty": (weights(lambda data: b""), "is damaged"),
    "one bit flipped": (weights(lambda data: data[:-1] + bytes([data[-1] ^ 1])), "is damaged"),
    "no tensors at all": (as_saved(b"not tensors"), "is damaged"),
    "a header that lies": (as_saved(b"\xff" * 64), "is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_reported_in_one_line(tmp_path: Path, damage: str) -> None:
    path = snapshots.save(tmp_path, snapshot())
    apply, words = DAMAGES[damage]
    apply(path)
    with pytest.raises(RunError) as caught:
        snapshots.load(path)
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


class Evil:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = snapshots.save(tmp_path, snapshot())
    as_saved(pickle.dumps(Evil(mark)))(path)
    with pytest.raises(RunError, match="is damaged"):
        snapshots.load(path)
    assert not mark.exists()


def test_snapshots_contain_no_pickle(tmp_path: Path) -> None:
    path = snapshots.save(tmp_path, snapshot())
    json.loads(path.read_text())
    data = path.with_suffix(".safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")  # the format: a length, a JSON header, plain numbers
    header = json.loads(data[8 : 8 + size])
    assert set(header) == {"weights.encode_w", "weights.odd", "optimiser.first", "optimiser.steps"}


def test_an_unwritable_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write .*; name another folder"):
        snapshots.save(tmp_path / "file" / "below", snapshot())
