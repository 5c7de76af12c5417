"""The replay buffer: order, sampling, memory limits, saving and stored transitions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from finrl_pod import memory
from finrl_pod.errors import ConfigError, RunError
from finrl_pod.memory import available_bytes
from finrl_pod.rl import experience as replay_module
from finrl_pod.rl.experience import Replay
from tests.rl.all_algorithms import small_learner

FIELDS = {"x": ((2,), torch.float32), "bar": ((), torch.int64)}
CPU = torch.device("cpu")


def items(first: int, n: int) -> dict[str, torch.Tensor]:
    """Items numbered from `first`; those of member 1 are 100 higher."""
    bar = torch.arange(first, first + n).repeat(2, 1) + torch.tensor([[0], [100]])
    return {"bar": bar, "x": bar.unsqueeze(-1).expand(2, n, 2).float()}


def test_latest_items_are_kept_in_order() -> None:
    replay, first = Replay(FIELDS, 2, 7, CPU), 0
    for n in (3, 3, 1, 5, 2, 7):
        replay.add(items(first, n))
        first += n
        expected_count = min(first, 7)
        assert replay.count == expected_count
        assert replay.written == first
        latest = replay.latest(99)
        assert latest["bar"][0].tolist() == list(range(first - expected_count, first))
        assert latest["x"][1, :, 0].tolist() == list(range(100 + first - expected_count, 100 + first))
        assert replay.latest(2)["bar"][0].tolist() == list(range(max(first - 2, 0), first))


@pytest.mark.parametrize("members", [1, 2])
def test_samples_are_independent_between_members(members: int) -> None:
    replay = Replay(FIELDS, members, 7, CPU)
    replay.add({name: x[:members] for name, x in items(0, 7).items()})
    indices = torch.tensor([[[1, 6], [0, 3]], [[2, 2], [5, 4]]])[:, :members]
    taken = replay.take(indices)
    assert taken["bar"].shape == (2, members, 2)
    for p in range(members):
        assert torch.equal(taken["bar"][:, p], indices[:, p] + 100 * p)
        assert torch.equal(taken["x"][:, p, :, 1], (indices[:, p] + 100 * p).float())


def test_replay_larger_than_free_memory_is_rejected_before_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "available_bytes", lambda _: 2 * 2**30)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: pytest.fail("must raise before allocating memory"))
    with pytest.raises(ConfigError) as caught:
        Replay(FIELDS, 4, 100_000_000, CPU, accounts=2)
    # 4 members x 100 M items x 16 bytes
    expected = (
        "agent.buffer_size of 200,000,000 transitions for 4 members takes 6.0 GiB, 2.0 GiB are free; lower it to "
    )
    assert str(caught.value).startswith(expected)
    assert str(caught.value).endswith("53,687,091 or less")


def test_available_bytes_is_plausible() -> None:
    assert 2**20 < available_bytes(CPU) < 2**50


def test_page_cache_of_a_container_counts_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    monkeypatch.setattr(memory, "_machine_bytes", lambda: 2**40)
    stat = f"anon 5\ninactive_file {2**30}\nactive_file {2**29}\nfile {3 * 2**29}\n"
    for name, text in {"max": str(2**33), "current": str(2**33 - 1000), "stat": stat}.items():
        (tmp_path / f"memory.{name}").write_text(text + "\n")
    assert available_bytes(CPU) == 1000 + 2**30 + 2**29
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(CPU) == 2**40


def test_saved_replay_with_other_sizes_is_rejected() -> None:
    replay = Replay(FIELDS, 2, 7, CPU)
    replay.add(items(0, 9))
    saved = replay.latest(7)
    other = Replay(FIELDS, 2, 7, CPU)
    other.load(saved, 9)
    assert all(torch.equal(x, other.data[name]) for name, x in replay.data.items())
    with pytest.raises(RunError, match="has 5 items, expected 7"):
        other.load(replay.latest(5), 9)
    with pytest.raises(RunError, match=r"x has shape \(1, 7, 2\)"):
        other.load({name: x[:1] for name, x in saved.items()}, 9)
    with pytest.raises(RunError, match="bar has nothing"):
        other.load({"x": saved["x"]}, 9)


def test_stored_transitions_match_the_environment() -> None:
    """Also across resets: the next state of a truncated episode is its final state; an item is one step of a group."""
    learner = small_learner("sac", (0, 1), buffer_size=240, learning_starts=10_000)
    learner.learn(20 * learner.iteration_samples)
    data = learner.algorithm.replay.data
    count = learner.algorithm.replay.count
    assert count == 40
    assert torch.equal(data["next_bar"][:, :count], data["bar"][:, :count] + 1)
    step, groups = torch.arange(count).view(20, 2), 2
    assert groups == learner.env.groups
    episode_starts = 0
    for p in (0, 1):
        for g in (0, 1):
            item_indices = step[:, g]
            account, next_account = data["account"][p, item_indices], data["next_account"][p, item_indices]
            bars = data["bar"][p, item_indices]
            continues = bars[1:] == bars[:-1] + 1
            assert torch.equal(account[1:][continues], next_account[:-1][continues])
            assert (account[1:][~continues][..., 0] == 1).all(), "a new window starts in cash"
            assert (next_account[:-1][~continues][..., 0] < 1).all()
            episode_starts += int((~continues).sum())
    assert episode_starts > 4
    assert (data["action"].abs() <= 1).all()
