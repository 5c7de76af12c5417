"""Files in a local folder and in an S3-compatible store: the same behaviour."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from finrl_pod.errors import RegistryError, SetupError
from finrl_pod.registry import object_store
from finrl_pod.registry.agent_registry import AgentRegistry
from finrl_pod.registry.handover import hand_over, last_handover, roll_back, strategies
from finrl_pod.registry.object_store import ObjectStore
from tests.registry.s3_server import s3_server
from tests.registry.sample_champions import store_champion

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture(params=["folder", "s3"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "store")
    return f"{request.getfixturevalue('bucket')}/{tmp_path.name}"


def test_files_are_written_read_listed_and_deleted(address: str) -> None:
    store = ObjectStore(address)
    assert store.keys("objects") == []
    assert store.read("objects/ab/abc") is None
    assert store.modification_time("objects/ab/abc") is None
    store.write("objects/ab/abc", b"one")
    store.write("objects/ab/abc", b"two")
    store.write("objects/cd/cde", b"\x00\xff")
    store.write("champions/x.json", b"")
    assert store.keys("objects") == ["objects/ab/abc", "objects/cd/cde"]
    assert [store.read(key) for key in ("objects/ab/abc", "objects/cd/cde", "champions/x.json")] == [
        b"two", b"\x00\xff", b"",
    ]  # fmt: skip
    age = datetime.now(UTC) - (store.modification_time("objects/ab/abc") or datetime.max.replace(tzinfo=UTC))
    assert abs(age) < timedelta(minutes=1)
    store.delete("objects/ab/abc")
    store.delete("objects/ab/abc")
    assert store.keys("objects") == ["objects/cd/cde"]
    assert ObjectStore(address).keys("objects") == ["objects/cd/cde"]


def test_create_never_replaces_a_file(address: str) -> None:
    store = ObjectStore(address)
    assert store.create("strategies/main/000001.json", b"first")
    assert not store.create("strategies/main/000001.json", b"second")
    assert store.read("strategies/main/000001.json") == b"first"
    assert store.keys("strategies") == ["strategies/main/000001.json"]  # no temporary file is left


def test_champions_are_handed_over_and_back(address: str) -> None:
    registry = AgentRegistry(address)
    first, second = (store_champion(registry, name) for name in ("first", "second"))
    assert set(registry.addresses()) == {first.address, second.address}
    assert registry.champion(first.address[:8]) == first
    hand_over(registry, "main", first)
    hand_over(registry, "main", second)
    roll_back(registry, "main")
    change = last_handover(AgentRegistry(address), "main")
    assert change is not None
    assert (change.number, change.champion, change.replaced) == (3, first.address, second.address)
    assert change.withdrawn == (second.ensemble,)
    assert strategies(registry) == ["main"]


def test_a_missing_bucket_and_a_server_that_is_gone_are_named(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RegistryError, match=r"cannot write to the registry s3://nothing/x: .* bucket does not exist"):
        ObjectStore("s3://nothing/x").write("objects/ab", b"")
    assert ObjectStore("s3://nothing/x").keys("objects") == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setitem(object_store.REMOTE["s3"], "skip_instance_cache", True)
    with pytest.raises(RegistryError, match="cannot read the registry s3://agents: Could not connect"):
        ObjectStore("s3://agents").read("objects/ab")


def test_files_of_a_folder_are_readable_by_others_who_can_read_it(tmp_path: Path) -> None:
    store = ObjectStore(str(tmp_path))
    store.write("a/written", b"")
    store.create("a/created", b"")
    modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "a").iterdir()}
    assert modes == {0o644}


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RegistryError, match=r"cannot write to the registry .*/file: Not a directory; check the"):
        ObjectStore(str(tmp_path / "file")).write("objects/ab", b"")
    if os.geteuid():
        (tmp_path / "read-only").mkdir(mode=0o500)
        with pytest.raises(RegistryError, match="Permission denied"):
            ObjectStore(str(tmp_path / "read-only")).write("objects/ab", b"")


@pytest.mark.parametrize("address", ["http://127.0.0.1/agents", "sftp://host/agents", "github://x"])
def test_stores_without_atomic_writes_are_refused(address: str) -> None:
    with pytest.raises(RegistryError, match="a registry is a folder or an address that starts with s3://"):
        ObjectStore(address)


def test_missing_package_is_named() -> None:
    with pytest.raises(SetupError, match="needs a package: pip install 'gcsfs'"):
        ObjectStore("gs://bucket/agents")
