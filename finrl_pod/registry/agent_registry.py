"""The registry of agents: champions of finished runs, stored by content.

objects/ab/abcd...       files of runs, named by their SHA-256
champions/SHA256.json    a champion: its agents, and the hashes of its run files
strategies/NAME/N.json   the champion that a strategy trades after change N (`handover.py`)

A champion is written after its files, so one that is listed is complete. Hashes are verified at every read.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from finrl_pod import __version__
from finrl_pod.errors import RegistryError
from finrl_pod.files import home, write_bytes
from finrl_pod.promotion.verdict import read_verdict
from finrl_pod.registry.object_store import ObjectStore
from finrl_pod.registry.records import AgentRecord, Champion, sha256
from finrl_pod.tournament.leaderboard import ancestry
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.selection import champion_of

ADDRESS_VARIABLE = "FINRL_POD_REGISTRY"
FOLDER = "registry"  # in the user data folder
CHAMPIONS = "champions"
OBJECTS = "objects"
STRATEGIES = "strategies"
SNAPSHOTS = "snapshots"
TRAINING_ONLY = ("replay", "tensorboard")  # run folders needed only to continue the training
MIN_PREFIX = 4  # characters of an abbreviated address


def default_address() -> str:
    """Address of the registry: FINRL_POD_REGISTRY, else a folder in the user data folder."""
    return os.environ.get(ADDRESS_VARIABLE) or str(home() / FOLDER)


class AgentRegistry:
    """The registry at an address; by default `default_address`.

    Methods raise RegistryError for an unusable registry.
    """

    def __init__(self, address: str = "") -> None:
        self.store = ObjectStore(address or default_address())

    # ------------------------------------------------------------------ reading

    def addresses(self) -> list[str]:
        """Addresses of all champions, oldest first."""
        names = [key.removeprefix(f"{CHAMPIONS}/") for key in self.store.keys(CHAMPIONS)]
        addresses = [name.removesuffix(".json") for name in names if not name.startswith(".")]
        times = {address: self.store.modification_time(champion_key(address)) for address in addresses}
        dated_addresses = [(time, address) for address, time in times.items() if time is not None]
        return [address for _, address in sorted(dated_addresses)]

    def champion(self, text: str) -> Champion:
        """The champion with an address or its beginning. Raises RegistryError if there is none, or several."""
        return self._champion(self._complete(text, "champion", self.addresses()))

    def agent(self, text: str) -> tuple[AgentRecord, Champion]:
        """The agent with an address or its beginning, and a champion of its run."""
        agents = {agent.address: (agent, champion) for champion in self.champions() for agent in champion.agents}
        return agents[self._complete(text, "agent", list(agents))]

    def champions(self) -> Iterator[Champion]:
        for address in self.addresses():
            yield self._champion(address)

    def object(self, digest: str) -> bytes:
        """Contents of a file by their SHA-256. Raises RegistryError if it is missing or damaged."""
        data = self.store.read(object_key(digest))
        if data is None or sha256(data) != digest:
            state = "missing" if data is None else "damaged: its hash differs"
            raise RegistryError(f"file {digest} of the registry {self.store.address} is {state}; push its run again")
        return data

    def _champion(self, address: str) -> Champion:
        data = self.store.read(champion_key(address))
        if data is None:
            raise RegistryError(f"the registry {self.store.address} has no champion {address}")
        return Champion.decode(data, address)

    def _complete(self, text: str, kind: str, addresses: list[str]) -> str:
        """The address that equals `text` or starts with it."""
        if text in addresses:
            return text
        matches = [address for address in addresses if address.startswith(text)] if len(text) >= MIN_PREFIX else []
        if len(matches) == 1:
            return matches[0]
        if len(text) < MIN_PREFIX:
            raise RegistryError(f"an address needs at least {MIN_PREFIX} characters, got {text!r}")
        description = f"{len(matches)} {kind}s that start with" if matches else f"no {kind}"
        raise RegistryError(
            f"the registry {self.store.address} has {description} {text!r}; see them with `finrl-pod registry list`"
        )

    # ------------------------------------------------------------------ writing

    def check_writable(self) -> None:
        """Raise RegistryError if nothing can be written, before work whose result would be lost."""
        key = f"{OBJECTS}/.check-{uuid.uuid4().hex}"
        self.store.write(key, b"")
        self.store.delete(key)

    def push(self, folder: Path) -> Champion:
        """Store the champion of a finished run. Storing it again changes nothing.

        Raises RunError if the run has no verdict or is damaged, RegistryError for an agent trained on other data.
        """
        champion = describe_champion(folder)
        for path, digest in champion.files.items():
            data = (folder / path).read_bytes()
            if sha256(data) != digest:
                raise RegistryError(f"{folder / path} changed while it was stored; push {folder} again")
            # Written even if it is there: files that `collect_garbage` found unused become recent again.
            self.store.write(object_key(digest), data)
        self.store.write(champion_key(champion.address), champion.encode())
        return champion

    def pull(self, champion: Champion, out: Path) -> None:
        """Write the run files of a champion into a new folder, as other commands read them.

        Raises RegistryError if the folder is not empty, or a file is missing, damaged or outside the folder.
        """
        _check_empty(out)
        for path, digest in champion.files.items():
            if Path(path).is_absolute() or ".." in Path(path).parts:
                raise RegistryError(f"champion {champion.address} names the file {path} outside its run")
            write_bytes(out / path, self.object(digest))

    def pull_agent(self, agent: AgentRecord, champion: Champion, out: Path) -> Path:
        """Write one agent into an empty folder, as `finrl_pod_app.api.setup.load` reads it. Returns its JSON file."""
        _check_empty(out)
        for suffix in ("safetensors", "json"):
            name = f"{agent.id}.{suffix}"
            write_bytes(out / name, self.object(champion.files[f"{SNAPSHOTS}/{name}"]))
        return out / f"{agent.id}.json"


def describe_champion(folder: Path) -> Champion:
    """Record of the champion of a finished run, see `AgentRegistry.push`."""
    run = RunDirectory.open(folder)
    config, verdict, members = run.config, read_verdict(folder), champion_of(run, run.config)
    shares = dict(zip(members.ids, members.ensemble_weights, strict=True))
    state = run.state()
    assert state is not None  # a run with a champion has one
    board = {score.id: score for score in state.leaderboard.scores}
    files = run_files(folder, set(board))
    agents = []
    for name in [*members.ids, *(name for name in board if name not in shares)]:
        snapshot = run.snapshot(name)  # verifies the hash of its weights
        if snapshot.data_sha256 != run.data_sha256:
            raise RegistryError(
                f"agent {name} of {folder} was trained on data {snapshot.data_sha256[:12]}, but its run on "
                f"{run.data_sha256[:12]}; train the run again"
            )
        agents.append(
            AgentRecord(
                id=name,
                address=files[f"{SNAPSHOTS}/{name}.json"],
                algorithm=str(snapshot.spec.get("algorithm", "")),
                ancestors=tuple(ancestry(name, state.parents)),
                samples=snapshot.samples,
                score=board[name].score if math.isfinite(board[name].score) else None,
                share=shares.get(name, 0.0),
            )
        )
    return Champion(
        run=folder.absolute().name,
        agents=tuple(agents),
        files=files,
        promoted=verdict.promoted,
        data=config.data.name,
        data_sha256=run.data_sha256,
        config_sha256=config.sha256,
        version=__version__,
    )


def run_files(folder: Path, agents: set[str]) -> dict[str, str]:
    """SHA-256 of each file of a run that evaluating and trading its champion needs, by its path in the run."""
    hashes = {}
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder)
        is_run_file = file.is_file() and not any(name.startswith(".") for name in path.parts)
        of_agent = path.parts[0] != SNAPSHOTS or path.stem in agents
        if is_run_file and of_agent and path.parts[0] not in TRAINING_ONLY:
            hashes[path.as_posix()] = sha256(file.read_bytes())
    return hashes


def champion_key(address: str) -> str:
    return f"{CHAMPIONS}/{address}.json"


def object_key(digest: str) -> str:
    return f"{OBJECTS}/{digest[:2]}/{digest}"


def _check_empty(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RegistryError(f"{out} is not an empty folder; choose another with --out")
