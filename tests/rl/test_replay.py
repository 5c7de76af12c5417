"""The replay: a ring whose size is known before it is made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from finrl_pod import memory
from finrl_pod.errors import ConfigError, RunError
from finrl_pod.memory import available_bytes
from finrl_pod.rl.buffers import replay as replay_module
from finrl_pod.rl.buffers.replay import Replay
from tests.rl.all_algorithms import small_learner

FIELDS = {"x": ((2,), torch.float32), "day": ((), torch.int64)}
CPU = torch.device("cpu")


def items(first: int, n: int) -> dict[str, torch.Tensor]:
    """Numbered from `first`; member 1's are a hundred more."""
    day = torch.arange(first, first + n).repeat(2, 1) + torch.tensor([[0], [100]])
    return {"day": day, "x": day.unsqueeze(-1).expand(2, n, 2).float()}


def test_the_last_items_are_kept_in_order_however_they_came() -> None:
    ring, first = Replay(FIELDS, 2, 7, CPU), 0
    for n in (3, 3, 1, 5, 2, 7):
        ring.add(items(first, n))
        first += n
        kept = min(first, 7)
        assert ring.count == kept
        assert ring.written == first
        latest = ring.latest(99)
        assert latest["day"][0].tolist() == list(range(first - kept, first))
        assert latest["x"][1, :, 0].tolist() == list(range(100 + first - kept, 100 + first))
        assert ring.latest(2)["day"][0].tolist() == list(range(max(first - 2, 0), first))


@pytest.mark.parametrize("members", [1, 2])
def test_samples_are_independent_between_members(members: int) -> None:
    ring = Replay(FIELDS, members, 7, CPU)
    ring.add({name: x[:members] for name, x in items(0, 7).items()})
    chosen = torch.tensor([[[1, 6], [0, 3]], [[2, 2], [5, 4]]])[:, :members]
    taken = ring.take(chosen)
    assert taken["day"].shape == (2, members, 2)
    for p in range(members):
        assert torch.equal(taken["day"][:, p], chosen[:, p] + 100 * p)
        assert torch.equal(taken["x"][:, p, :, 1], (chosen[:, p] + 100 * p).float())


def test_a_replay_that_does_not_fit_into_memory_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "available_bytes", lambda _: 2 * 2**30)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: pytest.fail("nothing may be allocated"))
    with pytest.raises(ConfigError) as refused:
        Replay(FIELDS, 4, 100_000_000, CPU, accounts=2)
    # 4 members x 100 M items x 16 bytes
    expected = (
        "agent.buffer_size of 200,000,000 transitions for 4 members takes 6.0 GiB, 2.0 GiB are free; lower it to "
    )
    assert str(refused.value).startswith(expected)
    assert str(refused.value).endswith("53,687,091 or less")


def test_free_memory_is_a_plausible_number() -> None:
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


def test_a_saved_replay_that_does_not_fit_is_refused() -> None:
    ring = Replay(FIELDS, 2, 7, CPU)
    ring.add(items(0, 9))
    saved = ring.latest(7)
    other = Replay(FIELDS, 2, 7, CPU)
    other.load(saved, 9)
    assert all(torch.equal(x, other.data[name]) for name, x in ring.data.items())
    with pytest.raises(RunError, match="has 5 items, expected 7"):
        other.load(ring.latest(5), 9)
    with pytest.raises(RunError, match=r"x has shape \(1, 7, 2\)"):
        other.load({name: x[:1] for name, x in saved.items()}, 9)
    with pytest.raises(RunError, match="day has nothing"):
        other.load({"x": saved["x"]}, 9)


def test_stored_transitions_match_the_environment() -> None:
    """Over resets: the next state of a cut-off episode is its own last one, and every item is one step of a group."""
    learner = small_learner("sac", (0, 1), buffer_size=240, learning_starts=10_000)
    learner.learn(20 * learner.iteration_samples)
    data = learner.algorithm.replay.data
    count = learner.algorithm.replay.count
    assert count == 40
    assert torch.equal(data["next_day"][:, :count], data["day"][:, :count] + 1)
    step, groups = torch.arange(count).view(20, 2), 2
    assert groups == learner.env.groups
    fresh = 0
    for p in (0, 1):
        for g in (0, 1):
            places = step[:, g]
            account, next_account = data["account"][p, places], data["next_account"][p, places]
            days = data["day"][p, places]
            continues = days[1:] == days[:-1] + 1
            assert torch.equal(account[1:][continues], next_account[:-1][continues])
            assert (account[1:][~continues][..., 0] == 1).all(), "after a window a group starts in cash"
            assert (next_account[:-1][~continues][..., 0] < 1).all()
            fresh += int((~continues).sum())
    assert fresh > 4
    assert (data["action"].abs() <= 1).all()
