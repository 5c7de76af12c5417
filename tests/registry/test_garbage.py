"""What garbage collection removes, and what it must keep."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest

from finrl_pod.errors import RegistryError
from finrl_pod.registry.agent_registry import AgentRegistry, champion_key, object_key
from finrl_pod.registry.handover import collect_garbage, hand_over, roll_back
from finrl_pod.registry.records import Champion, sha256
from tests.registry.sample_champions import store_champion

NOW = timedelta(0)


@pytest.fixture
def registry(tmp_path: Path) -> AgentRegistry:
    return AgentRegistry(str(tmp_path))


def is_complete(registry: AgentRegistry, champion: Champion) -> bool:
    """Whether a champion can be read with all its files."""
    assert registry.champion(champion.address) == champion
    return all(registry.object(digest) for digest in champion.files.values())


def orphan(registry: AgentRegistry, text: str = "of a push that was killed") -> str:
    key = object_key(sha256(text.encode()))
    registry.store.write(key, text.encode())
    return key


def test_files_without_a_champion_are_removed(registry: AgentRegistry) -> None:
    champion, key = store_champion(registry, "one"), orphan(registry)
    found = collect_garbage(registry, min_age=NOW)
    assert (found.champions, found.files, found.kept) == ((), (key,), 1)
    assert registry.store.read(key) is None
    assert is_complete(registry, champion)


def test_young_files_stay(registry: AgentRegistry) -> None:
    key = orphan(registry)
    assert collect_garbage(registry).files == ()
    assert registry.store.read(key) is not None


def test_files_written_again_while_garbage_is_collected_stay(
    registry: AgentRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push that finds its files there already is safe, because it writes them again."""
    keys = [orphan(registry, "one"), orphan(registry, "two")]
    for key in keys:
        os.utime(tmp_path / key, (time.time() - 7200,) * 2)
    delete = registry.store.delete

    def push_meanwhile(key: str) -> None:
        delete(key)
        for other, text in zip(keys, ("one", "two"), strict=True):
            if other != key:
                registry.store.write(other, text.encode())

    monkeypatch.setattr(registry.store, "delete", push_meanwhile)
    collect_garbage(registry)
    assert sum(registry.store.read(key) is not None for key in keys) == 1


def test_dry_run_removes_nothing(registry: AgentRegistry) -> None:
    key, champion = orphan(registry), store_champion(registry, "one", promoted=False)
    found = collect_garbage(registry, min_age=NOW, include_refused=True, dry_run=True)
    assert found.champions == (champion.address,)
    assert key in found.files
    assert is_complete(registry, champion)
    assert registry.store.read(key) is not None


def test_refused_champions_go_only_on_request(registry: AgentRegistry) -> None:
    kept, refused = store_champion(registry, "kept"), store_champion(registry, "refused", promoted=False)
    assert collect_garbage(registry, min_age=NOW).champions == ()
    assert is_complete(registry, refused)
    found = collect_garbage(registry, min_age=NOW, include_refused=True)
    assert (found.champions, found.kept) == ((refused.address,), 1)
    assert len(found.files) == 2  # the verdict is also a file of the other champion
    assert is_complete(registry, kept)
    assert registry.addresses() == [kept.address]


def test_champions_of_strategies_stay(registry: AgentRegistry) -> None:
    """The one that is traded and those to go back to, also after a rollback."""
    one, two, three = (store_champion(registry, name) for name in ("one", "two", "three"))
    for champion in (one, two, three):
        hand_over(registry, "main", champion)
    roll_back(registry, "main")
    collect_garbage(registry, min_age=NOW, include_refused=True)
    assert all(is_complete(registry, champion) for champion in (one, two))


def test_temporary_files_of_killed_writers_are_removed_and_others_stay(registry: AgentRegistry, tmp_path: Path) -> None:
    champion = store_champion(registry, "one")
    temporary = tmp_path / "champions" / f".{champion.address}.json.x1y2"
    temporary.write_text("{")
    (tmp_path / "README").write_text("a file of somebody else")
    assert registry.addresses() == [champion.address]
    assert collect_garbage(registry, min_age=NOW).files == (f"champions/{temporary.name}",)
    assert not temporary.exists()
    assert (tmp_path / "README").exists()


def test_nothing_is_removed_if_a_record_cannot_be_read(registry: AgentRegistry, tmp_path: Path) -> None:
    key, champion = orphan(registry), store_champion(registry, "one")
    (tmp_path / champion_key(champion.address)).write_text("{}")
    with pytest.raises(RegistryError, match="is damaged"):
        collect_garbage(registry, min_age=NOW)
    assert registry.store.read(key) is not None
    hand_over(registry, "main", store_champion(registry, "two"))
    (tmp_path / "strategies" / "main" / "000001.json").write_text("{}")
    (tmp_path / champion_key(champion.address)).unlink()
    with pytest.raises(RegistryError, match="is damaged"):
        collect_garbage(registry, min_age=NOW)
