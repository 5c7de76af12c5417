"""Champions in a registry, without a training."""

from __future__ import annotations

from finrl_pod.registry.agent_registry import AgentRegistry, champion_key, object_key
from finrl_pod.registry.records import AgentRecord, Champion, sha256


def store_champion(registry: AgentRegistry, name: str, *, promoted: bool = True) -> Champion:
    """Store a champion of one agent. Its files are a verdict, and an agent and weights of their own."""
    contents = {
        "verdict.json": b'{"reasons": []}',
        "snapshots/g00s00.json": f'{{"id": "{name}"}}'.encode(),
        "snapshots/g00s00.safetensors": f"weights of {name}".encode(),
    }
    for data in contents.values():
        registry.store.write(object_key(sha256(data)), data)
    files = {path: sha256(data) for path, data in contents.items()}
    agent = AgentRecord("g00s00", files["snapshots/g00s00.json"], "ppo", (), 128, 0.5, 1.0)
    champion = Champion(name, (agent,), files, promoted, "sample", "ab" * 32, "cd" * 32, "0.1.0")
    registry.store.write(champion_key(champion.address), champion.encode())
    return champion
