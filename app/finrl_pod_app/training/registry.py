"""What `finrl-pod registry` shows, as JSON values."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from finrl_pod.errors import RegistryError
from finrl_pod.registry.agent_registry import AgentRegistry, champion_key
from finrl_pod.registry.handover import handovers, last_handover, strategies
from finrl_pod.registry.records import AgentRecord, Champion


def list_registry(registry: AgentRegistry) -> dict[str, Any]:
    """All champions, oldest first, and the strategies that champions were handed over to."""
    changes = {name: last_handover(registry, name) for name in strategies(registry)}
    champions = []
    for champion in registry.champions():
        address = champion.address
        traded = [name for name, change in changes.items() if change and change.champion == address]
        champions.append(
            {
                "address": address,
                "run": champion.run,
                "algorithms": sorted({agent.algorithm for agent in champion.members}),
                "members": [agent.id for agent in champion.members],
                "agents": len(champion.agents),
                "data": champion.data,
                "data_sha256": champion.data_sha256,
                "promoted": champion.promoted,
                "stored": _stored(registry, address),
                "strategies": traded,
            }
        )
    return {
        "registry": registry.store.address,
        "champions": champions,
        "strategies": [
            {"name": name, "champion": change.champion, "previous": change.previous, "since": change.at}
            for name, change in changes.items()
            if change is not None
        ],
    }


def show_entry(registry: AgentRegistry, text: str) -> dict[str, Any]:
    """A champion with its agents and hand-overs, or an agent. text: an address or its beginning, or a strategy's name.

    Raises RegistryError if there is none.
    """
    if text in strategies(registry):
        changes = handovers(registry, text)
        return {"strategy": text, "changes": [dataclasses.asdict(change) for change in changes]}
    found = find(registry, text)
    if isinstance(found, Champion):
        changes = [change for name in strategies(registry) for change in handovers(registry, name)]
        verdict = json.loads(registry.object(found.files["verdict.json"]))
        return {
            "address": found.address,
            **dataclasses.asdict(found),
            "stored": _stored(registry, found.address),
            "reasons": verdict["reasons"],
            "handovers": [
                {"strategy": change.strategy, "action": change.action, "at": change.at, "by": change.by}
                for change in changes
                if change.champion == found.address
            ],
        }
    agent, champion = found
    facts = json.loads(registry.object(agent.address))
    wanted = ("hyperparameters", "data_sha256", "seed", "version", "tensors_sha256")
    return {
        **dataclasses.asdict(agent),
        "run": champion.run,
        "champion": champion.address,
        **{name: facts[name] for name in wanted},
    }


def find(registry: AgentRegistry, text: str) -> Champion | tuple[AgentRecord, Champion]:
    """The champion or agent with an address or its beginning. Raises RegistryError if there is none, or several."""
    try:
        return registry.champion(text)
    except RegistryError as no_champion:
        try:
            return registry.agent(text)
        except RegistryError:
            raise no_champion from None


def _stored(registry: AgentRegistry, address: str) -> str | None:
    time = registry.store.modified(champion_key(address))
    return None if time is None else time.isoformat(timespec="seconds")
