"""Which champion a strategy trades: handing over, going back, concurrent changes, and kills between two writes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path

import pytest

from finrl_pod.errors import RegistryError
from finrl_pod.registry.agent_registry import AgentRegistry, champion_key
from finrl_pod.registry.handover import KEPT, hand_over, handovers, last_handover, roll_back, strategies
from finrl_pod.registry.object_store import ObjectStore
from finrl_pod.registry.records import Champion, Handover, canonical_json, sha256
from tests.registry.sample_champions import store_champion


@pytest.fixture
def registry(tmp_path: Path) -> AgentRegistry:
    return AgentRegistry(str(tmp_path / "registry"))


def champion_of(registry: AgentRegistry, strategy: str) -> Champion:
    change = last_handover(registry, strategy)
    assert change is not None
    return registry.champion(change.champion)


def test_first_champion_has_nothing_before_it(registry: AgentRegistry) -> None:
    assert last_handover(registry, "main") is None
    assert strategies(registry) == []
    change = hand_over(registry, "main", store_champion(registry, "one"))
    assert (change.number, change.action, change.previous) == (1, "hand_over", None)
    with pytest.raises(RegistryError, match=r"'main' has no champion before .* to go back to"):
        roll_back(registry, "main")
    with pytest.raises(RegistryError, match="no champion was handed over to strategy 'other'"):
        roll_back(registry, "other")


def test_strategies_are_independent(registry: AgentRegistry) -> None:
    one, two = (store_champion(registry, name) for name in ("one", "two"))
    hand_over(registry, "a", one)
    hand_over(registry, "b", two)
    assert (champion_of(registry, "a"), champion_of(registry, "b")) == (one, two)
    assert strategies(registry) == ["a", "b"]


def test_going_back_twice_reaches_the_first_champion(registry: AgentRegistry) -> None:
    champions = [store_champion(registry, name) for name in ("one", "two", "three")]
    for champion in champions:
        hand_over(registry, "main", champion)
    assert roll_back(registry, "main").champion == champions[1].address
    assert roll_back(registry, "main").champion == champions[0].address
    assert [change.action for change in handovers(registry, "main")] == ["hand_over"] * 3 + ["roll_back"] * 2


def test_champion_rolled_back_is_not_handed_over_again(registry: AgentRegistry) -> None:
    one, two = (store_champion(registry, name) for name in ("one", "two"))
    hand_over(registry, "main", one)
    hand_over(registry, "main", two)
    roll_back(registry, "main")
    with pytest.raises(RegistryError, match="was rolled back from the agents of champion"):
        hand_over(registry, "main", two)
    assert champion_of(registry, "main") == one
    again = dataclasses.replace(two, run="another report on the same agents")
    with pytest.raises(RegistryError, match="was rolled back"):
        hand_over(registry, "main", again)
    hand_over(registry, "other", two)  # another strategy may trade it


def test_same_champion_again_changes_nothing(registry: AgentRegistry) -> None:
    one = store_champion(registry, "one")
    assert hand_over(registry, "main", one) == hand_over(registry, "main", one)
    assert len(handovers(registry, "main")) == 1


def test_refused_champion_is_not_handed_over(registry: AgentRegistry) -> None:
    with pytest.raises(RegistryError, match="was not promoted by the gate"):
        hand_over(registry, "main", store_champion(registry, "one", promoted=False))
    assert last_handover(registry, "main") is None


def test_a_few_champions_are_kept_to_go_back_to(registry: AgentRegistry) -> None:
    for i in range(KEPT + 2):
        change = hand_over(registry, "main", store_champion(registry, f"champion {i}"))
    assert len(change.champions) == KEPT


def test_of_two_concurrent_changes_one_fails(registry: AgentRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = (store_champion(registry, name) for name in ("one", "two", "three"))
    hand_over(registry, "main", one)
    create = registry.store.create

    def other_process_first(key: str, data: bytes) -> bool:
        monkeypatch.undo()
        hand_over(registry, "main", two)
        return create(key, data)

    monkeypatch.setattr(registry.store, "create", other_process_first)
    with pytest.raises(RegistryError, match="another process changed strategy 'main' at the same time"):
        hand_over(registry, "main", three)
    assert champion_of(registry, "main") == two


@pytest.mark.parametrize("name", ["", "../main", "a/b", ".hidden", "a" * 65, "two words"])
def test_invalid_names_are_refused(registry: AgentRegistry, name: str) -> None:
    with pytest.raises(RegistryError, match="a strategy name has letters"):
        hand_over(registry, name, store_champion(registry, "one"))


def test_changed_and_missing_records_are_refused(registry: AgentRegistry, tmp_path: Path) -> None:
    one, two = (store_champion(registry, name) for name in ("one", "two"))
    hand_over(registry, "main", one)
    file = tmp_path / "registry" / "strategies" / "main" / "000001.json"
    text = file.read_text()
    file.write_text(text.replace(one.address, two.address))
    with pytest.raises(RegistryError, match=r"000001.json is damaged: its hash differs"):
        last_handover(registry, "main")
    file.write_text(json.dumps([1]))
    with pytest.raises(RegistryError, match=r"000001.json is damaged"):
        last_handover(registry, "main")
    file.write_text(text)
    (tmp_path / "registry" / champion_key(one.address)).unlink()
    with pytest.raises(RegistryError, match="has no champion"):
        champion_of(registry, "main")


class KilledAtWrite(ObjectStore):
    """A store whose process is killed before its n-th write."""

    def __init__(self, address: str, writes: int) -> None:
        super().__init__(address)
        self.left = writes

    def write(self, key: str, data: bytes) -> None:
        self._count()
        super().write(key, data)

    def create(self, key: str, data: bytes) -> bool:
        self._count()
        return super().create(key, data)

    def _count(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


WRITES = 5  # three files, the champion, the hand-over


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12, if there are threads
@pytest.mark.parametrize("writes", range(WRITES + 1))
def test_kill_between_any_two_writes_leaves_the_old_or_the_new_champion(tmp_path: Path, writes: int) -> None:
    """A process pushes and hands over a champion and is killed by SIGKILL before one of its writes, or not at all."""
    registry = AgentRegistry(str(tmp_path))
    old = store_champion(registry, "old")
    hand_over(registry, "main", old)
    child = os.fork()
    if child == 0:  # no exit handlers of the test runner run in the child
        try:
            registry.store = KilledAtWrite(str(tmp_path), writes)
            hand_over(registry, "main", store_champion(registry, "new"))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) == (writes < WRITES)
    found = champion_of(registry, "main")
    assert found.run == ("new" if writes == WRITES else "old")
    for digest in found.files.values():
        registry.object(digest)
    # Running it again completes the hand-over.
    new = store_champion(registry, "new")
    assert hand_over(registry, "main", new).champion == new.address
    assert roll_back(registry, "main").champion == old.address


CHANGES = {
    "agents": [None, {}, [1], [[]], [{}], "x"],
    "files": [None, [], "x", {"a": 1}],
    "promoted": ["yes", 1, None],
    "run": [None, 5, ["a"]],
    "format": [None, "1", 2, []],
    "extra": [1],
}


@pytest.mark.parametrize("content", ["", "[]", "null", '"x"', "{}", "[" * 100_000, '{"format": 1}', "\ud800"])
def test_malformed_champion_is_an_error_of_the_registry(content: str) -> None:
    data = content.encode(errors="surrogatepass")
    with pytest.raises(RegistryError):
        Champion.decode(data, sha256(data))
    with pytest.raises(RegistryError):
        Handover.decode(data, "key")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in CHANGES.items() for value in values])
def test_champion_with_a_malformed_field_is_an_error_of_the_registry(
    registry: AgentRegistry, name: str, value: object
) -> None:
    champion = store_champion(registry, "one")
    data = canonical_json({**json.loads(champion.encode()), name: value})
    with pytest.raises(RegistryError):
        Champion.decode(data, sha256(data))
    assert Champion.decode(champion.encode(), champion.address) == champion


@pytest.mark.parametrize("champions", [[], None, "x", [1], {}])
def test_change_with_malformed_champions_is_an_error_of_the_registry(
    registry: AgentRegistry, champions: object
) -> None:
    values = json.loads(hand_over(registry, "main", store_champion(registry, "one")).encode())
    values = {**values, "champions": champions}
    values.pop("sha256")
    with pytest.raises(RegistryError):
        Handover.decode(canonical_json({**values, "sha256": sha256(canonical_json(values))}), "key")
