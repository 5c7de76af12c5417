"""Export of trained agents for programs without finrl_pod: networks by torch.export or as ONNX, and a description.

agent.pt2 or agent.onnx  the networks of all members, with the normalisation of features
agent.json               inputs and outputs, names of features, and what else turns actions into orders

Decisions are exported without the market: mandates, limits and costs are in the description.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod import __version__
from finrl_pod.errors import ConfigError, RunError
from finrl_pod.files import write_bytes, write_json
from finrl_pod.rl.acting.actor import Actor
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.types import Normaliser, Tensor
from finrl_pod_app.environment_training.saved_agents import load_agents, network_dtype

Format = Literal["torch", "onnx"]
FILES: Mapping[Format, str] = {"torch": "agent.pt2", "onnx": "agent.onnx"}
DESCRIPTION = "agent.json"
ONNX_PACKAGES = ("onnx", "onnxscript")  # that torch.onnx imports


@dataclass(frozen=True, eq=False)
class Network:
    """An actor, the weights [M, ...] of some members, and their numbers in the exported agent."""

    actor: Actor
    weights: Mapping[str, Tensor]
    members: Sequence[int]


class MarketAgents(torch.nn.Module):
    """Actions [M, D] of M members on a market.

    features: [B, N, F] float64, raw, NaN where undefined; the decision bar last, B = 1 without an encoder. tradable:
    [B, N] bool. account: [W] float64, cash and holdings as weights of equity, then what the agents observe besides.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, networks: Sequence[Network], normaliser: Normaliser) -> None:
        super().__init__()
        self._networks = networks
        self._clip = normaliser.clip
        _register(self, networks)
        self.register_buffer("mean", torch.tensor(normaliser.mean, dtype=torch.float64))
        self.register_buffer("std", torch.tensor(normaliser.std, dtype=torch.float64))

    def forward(self, features: Tensor, tradable: Tensor, account: Tensor) -> Tensor:
        scaled = ((features - self.mean) / self.std).clamp(-self._clip, self._clip)
        rows = torch.where(torch.isnan(scaled), torch.zeros_like(scaled), scaled)
        actions = []
        for i, network in enumerate(self._networks):
            count = len(network.members)
            encodes = network.actor.spec.encoder != "none"
            window, mask = (rows, tradable) if encodes else (rows[-1], tradable[-1])
            weights = _weights(self, i, network)
            dtype = network_dtype(weights)
            market_rows = window.to(dtype).expand(count, 1, *window.shape)
            account_rows = account.to(dtype).expand(count, 1, 1, -1)
            action = network.actor.action(weights, market_rows, account_rows, mask.expand(count, 1, *mask.shape))
            actions.append(action.reshape(count, -1))
        # Parts of the members [M_i, ...] in the order of their numbers: [M, ...].
        members = [member for network in self._networks for member in network.members]
        result = torch.cat(actions)
        return result if members == sorted(members) else result[torch.argsort(torch.tensor(members))]


class RowAgents(torch.nn.Module):
    """Actions [M, E, D] of M members for rows [E, S] of an environment without a market; all members see all rows."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network
        _register(self, [network])

    def forward(self, observation: Tensor) -> Tensor:
        count = len(self._network.members)
        weights = _weights(self, 0, self._network)
        rows = observation.to(network_dtype(weights))
        table = rows.new_zeros(count, 1, 0, 0)
        action = self._network.actor.action(weights, table, rows.expand(count, 1, *rows.shape), None)
        return action.reshape(count, observation.shape[0], -1)


def _register(module: torch.nn.Module, networks: Sequence[Network]) -> None:
    for i, network in enumerate(networks):
        for name, value in network.weights.items():
            module.register_buffer(f"network{i}_{name}", value.detach().clone())


def _weights(module: torch.nn.Module, i: int, network: Network) -> dict[str, Tensor]:
    return {name: getattr(module, f"network{i}_{name}") for name in network.weights}


def export_run(run: Path, folder: Path, formats: Sequence[Format] = ("torch",)) -> list[Path]:
    """Export the champion of a tournament, or the agents of a run of `train --env`; returns the files written.

    Raises RunError for a folder that holds neither, ConfigError as `export_module`.
    """
    values = run / "config.json"
    if values.exists() and '"env":' in values.read_text(encoding="utf-8"):
        agents = load_agents(run)
        network = Network(agents.actor, agents.weights, range(agents.config.members))
        example = (torch.zeros(2, agents.spec.features),)
        description = {
            "env": agents.config.env,
            "algorithm": agents.config.agent.algorithm,
            "members": agents.config.members,
            "inputs": {"observation": ["E", agents.spec.features]},
            "output": _output(agents.spec, ["members", "E"]),
        }
        return export_module(RowAgents(network), example, description, folder, formats)
    from finrl_pod.tournament.run_directory import RunDirectory
    from finrl_pod.tournament.selection import champion_of
    from finrl_pod_app.evaluation.champions import load_champion
    from finrl_pod_app.prices.stored_prices import load_run_panel

    run_directory = RunDirectory.open(run)
    if run_directory.config.environment.kind == "custom":
        raise RunError(f"{run} is a tournament on a custom environment, and export does not support those")
    members = champion_of(run_directory, run_directory.config)
    strategy = load_champion(run_directory, members)
    symbols = load_run_panel(run_directory.config, run_directory.data_sha256, run).symbols
    return export_strategy(strategy, folder, formats, agents=members.ids, symbols=symbols)


def export_strategy(
    strategy: PolicyStrategy,
    folder: Path,
    formats: Sequence[Format] = ("torch",),
    *,
    agents: Sequence[str] = (),
    symbols: Sequence[str] = (),
) -> list[Path]:
    """Export the members of an ensemble. agents, symbols: names for the description. Raises as `export_module`."""
    networks = [Network(group.actor, group.params, group.members) for group in strategy.groups]
    spec = networks[0].actor.spec
    specs = [network.actor.spec for network in networks]
    lookbacks = {x.encoder != "none" and x.lookback for x in specs}
    if len(lookbacks) > 1:
        raise ConfigError("members whose encoders read different numbers of bars cannot be exported together")
    bars = int(lookbacks.pop()) or 1
    generator = torch.Generator().manual_seed(0)
    example = (
        torch.randn(bars, spec.assets, spec.features, generator=generator, dtype=torch.float64),
        torch.ones(bars, spec.assets, dtype=torch.bool),
        torch.full((spec.own,), 1 / spec.own, dtype=torch.float64),
    )
    rules = dataclasses.asdict(strategy.rules)
    description = {
        "agents": list(agents),
        "symbols": list(symbols),
        "ensemble": {"rule": strategy.rule, "weights": strategy.ensemble_weights.tolist()},
        "inputs": {
            "features": [bars, spec.assets, spec.features],
            "tradable": [bars, spec.assets],
            "account": [spec.own],
        },
        "feature_names": list(strategy.normaliser.feature_names),
        "output": _output(spec, ["members"]),
        "environment": rules,
        "mandate": None if strategy.mandate is None else dataclasses.asdict(strategy.mandate),
    }
    return export_module(MarketAgents(networks, strategy.normaliser), example, description, folder, formats)


def _output(spec: PolicySpec, leading: list[str | int]) -> dict[str, Any]:
    meaning = {
        "softmax": "scores of cash and the assets; a softmax over the tradable ones gives weights",
        "tilt": "scores of the assets; they tilt the weights of the base portfolio of the mandate",
        "direct": "numbers that the environment takes, clipped to [-1, 1]",
        "discrete": "number of a choice",
    }
    size = 1 if spec.action == "discrete" else spec.action_size
    return {"name": "action", "shape": [*leading, size], "kind": spec.action, "meaning": meaning[spec.action]}


def export_module(
    module: MarketAgents | RowAgents,
    example: tuple[Tensor, ...],
    description: Mapping[str, Any],
    folder: Path,
    formats: Sequence[Format],
) -> list[Path]:
    """Trace a module by torch.export and write it in each format, with its description.

    Raises ConfigError for a network that cannot be traced, ModuleNotFoundError if the packages for ONNX are missing.
    """
    module.eval()
    names = list(description["inputs"])
    batch = torch.export.Dim("E", min=1) if isinstance(module, RowAgents) else None
    shapes: tuple[Any, ...] | None = None if batch is None else ({0: batch},)
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(module, example, dynamic_shapes=shapes)
    except Exception as error:
        first = str(error).strip().splitlines()
        raise ConfigError(f"the network cannot be traced by torch.export: {first[0] if first else error}") from error
    files = []
    for format in formats:
        path = folder / FILES[format]
        if format == "torch":
            data = io.BytesIO()
            torch.export.save(program, data)
            write_bytes(path, data.getvalue())
        else:
            write_bytes(path, _onnx_bytes(program, names))
        files.append(path)
    write_json(folder / DESCRIPTION, {**description, "version": __version__})
    return [*files, folder / DESCRIPTION]


def _onnx_bytes(program: torch.export.ExportedProgram, names: Sequence[str]) -> bytes:
    for name in ONNX_PACKAGES:
        import_module(name)  # raises before torch: its error would name no package
    with _quiet():
        onnx_program = torch.onnx.export(
            program, dynamo=True, input_names=list(names), output_names=["action"], verbose=False
        )
    assert onnx_program is not None
    data: bytes = onnx_program.model_proto.SerializeToString()
    return data


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress output and warnings of torch while it traces."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
