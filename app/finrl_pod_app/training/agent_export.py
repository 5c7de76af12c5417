"""Export of agents for programs without finrl_pod.

agent.pt2 or agent.onnx contain the networks of all members with the normalisation of features. agent.json describes
inputs, outputs and features, and has the mandate, limits and costs that turn actions into orders.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod import __version__
from finrl_pod.errors import ConfigError, RunError
from finrl_pod.files import write_bytes, write_json
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.selection import champion_of
from finrl_pod.types import Tensor
from finrl_pod.user_files import unpinned
from finrl_pod_app.environment_training.row_agents import RowAgents
from finrl_pod_app.environment_training.saved_agents import load_agents, network_dtype
from finrl_pod_app.evaluation.champions import load_champion
from finrl_pod_app.prices.stored_prices import load_run_panel

Format = Literal["torch", "onnx"]
FILES: Mapping[Format, str] = {"torch": "agent.pt2", "onnx": "agent.onnx"}
DESCRIPTION = "agent.json"
ONNX_PACKAGES = ("onnx", "onnxscript")  # that torch.onnx imports
INPUTS = ("features", "tradable", "account")
MEANING = {
    "softmax": "scores of cash and the assets; a softmax over the tradable ones gives weights",
    "tilt": "scores of the assets; they tilt the weights of the base portfolio of the mandate",
    "direct": "scores of cash and the assets; those of the assets are weights, whose absolute values add up to at most "
    "leverage",
    "discrete": "number of a choice",
}
TRADES = "shares to trade, in [-1, 1] times hmax"


class MarketAgents(torch.nn.Module):
    """Actions [M, D] of M members on a market.

    features: [B, N, F] float64, raw, NaN where undefined; the decision bar last, B = 1 without an encoder. tradable:
    [B, N] bool. account: [W] float64, cash and holdings as weights of equity, then what the agents observe besides.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, strategy: PolicyStrategy) -> None:
        super().__init__()
        normaliser = strategy.normaliser
        self._groups = strategy.groups
        self._clip = normaliser.clip
        self._trades = _takes_trades(strategy)
        for i, group in enumerate(self._groups):
            for name, value in group.params.items():
                self.register_buffer(f"network{i}_{name}", value.detach().clone())
        self.register_buffer("mean", torch.tensor(normaliser.mean, dtype=torch.float64))
        self.register_buffer("std", torch.tensor(normaliser.std, dtype=torch.float64))

    def forward(self, features: Tensor, tradable: Tensor, account: Tensor) -> Tensor:
        scaled = ((features - self.mean) / self.std).clamp(-self._clip, self._clip)
        rows = torch.where(torch.isnan(scaled), torch.zeros_like(scaled), scaled)
        actions = []
        for i, group in enumerate(self._groups):
            count = len(group.members)
            encodes = group.actor.spec.encoder != "none"
            window, mask = (rows, tradable) if encodes else (rows[-1], tradable[-1])
            weights = {name: getattr(self, f"network{i}_{name}") for name in group.params}
            dtype = network_dtype(weights)
            market_rows = window.to(dtype).expand(count, 1, *window.shape)
            account_rows = account.to(dtype).expand(count, 1, 1, -1)
            action = group.actor.action(weights, market_rows, account_rows, mask.expand(count, 1, *mask.shape))
            actions.append(action.reshape(count, -1))
        # Actions of the groups [M_i, ...] in the order of the members: [M, ...].
        members = [member for group in self._groups for member in group.members]
        result = torch.cat(actions)
        if self._trades:
            result = result.clamp(-1.0, 1.0)
        return result if members == sorted(members) else result[torch.argsort(torch.tensor(members))]


def export_run(run: Path, folder: Path, formats: Sequence[Format] = ("torch",)) -> list[Path]:
    """Export the champion of a tournament, or the agents of a run of `train --env`; returns the files written.

    Raises RunError for a folder that holds neither, ConfigError as `export_strategy`.
    """
    values = run / "config.json"
    if values.exists() and '"env":' in values.read_text(encoding="utf-8"):
        agents = load_agents(run)
        module = RowAgents(agents)
        rows = module.input_shape
        description = {
            "env": unpinned(agents.config.env),
            "algorithm": agents.config.many or agents.config.agent.algorithm,
            "members": agents.count,
            **({"agents": list(agents.names)} if agents.names else {}),
            "inputs": {"observation": rows},
            "output": {"name": "action", **module.output},
        }
        sizes = {"agents": len(agents.names), "E": 2}
        example = torch.zeros([sizes.get(x, x) for x in rows])  # type: ignore[arg-type]
        shapes = ({len(rows) - 2: torch.export.Dim("E", min=1)},)
        return _export(module, (example,), description, folder, formats, shapes)
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
    """Export the members of an ensemble. agents, symbols: names for the description. Returns the files written.

    Raises ConfigError for a network that cannot be traced, ModuleNotFoundError if the packages for ONNX are missing.
    """
    spec = strategy.groups[0].actor.spec
    specs = [group.actor.spec for group in strategy.groups]
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
    description = {
        "agents": list(agents),
        "symbols": list(symbols),
        "ensemble": {"rule": strategy.rule, "weights": strategy.ensemble_weights.tolist()},
        "inputs": {name: list(x.shape) for name, x in zip(INPUTS, example, strict=True)},
        "feature_names": list(strategy.normaliser.feature_names),
        "output": {
            "name": "action",
            "shape": ["members", 1 if spec.action == "discrete" else spec.action_size],
            "kind": spec.action,
            "meaning": TRADES if _takes_trades(strategy) else MEANING[spec.action],
        },
        "environment": dataclasses.asdict(strategy.rules),
        "mandate": None if strategy.mandate is None else dataclasses.asdict(strategy.mandate),
    }
    return _export(MarketAgents(strategy), example, description, folder, formats)


def _takes_trades(strategy: PolicyStrategy) -> bool:
    """Whether actions are numbers of shares, which the environment clips."""
    return strategy.rules.kind == "stock_trading"


def _export(
    module: torch.nn.Module,
    example: tuple[Tensor, ...],
    description: Mapping[str, Any],
    folder: Path,
    formats: Sequence[Format],
    dynamic_shapes: tuple[Any, ...] | None = None,
) -> list[Path]:
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(module.eval(), example, dynamic_shapes=dynamic_shapes)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"the network cannot be traced by torch.export: {reason}") from error
    for format in formats:
        if format == "torch":
            data = io.BytesIO()
            torch.export.save(program, data)
            write_bytes(folder / FILES[format], data.getvalue())
        else:
            write_bytes(folder / FILES[format], _onnx_bytes(program, list(description["inputs"])))
    write_json(folder / DESCRIPTION, {**description, "version": __version__})
    return [*(folder / FILES[format] for format in formats), folder / DESCRIPTION]


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
