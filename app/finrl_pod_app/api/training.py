"""Training of one agent in a notebook or script, with its learning curve and a progress bar."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
from finrl_pod_envs.gymnasium_pool.lanes import PREFIX
from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod.arguments import check_arguments
from finrl_pod.display import table_html
from finrl_pod.errors import InputError
from finrl_pod.native.device import restored_threads
from finrl_pod.rl.algorithms.factory import is_solved
from finrl_pod.rl.training.learner import Callback, Learner
from finrl_pod.settings.algorithm_configs import ClosedFormConfig
from finrl_pod.settings.run import MAX_SEED, MAX_THREADS
from finrl_pod.user_files import is_custom
from finrl_pod_app.api import setup as api
from finrl_pod_app.api.figures import learning_figure
from finrl_pod_app.api.markets import Prices, make_market
from finrl_pod_app.prices.market_setup import solved_start
from finrl_pod_app.setup.kernels import compile_kernels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@dataclass(frozen=True, eq=False)
class TrainedAgent:
    """A trained agent with the market that it learned on and its learning curve.

    requested: samples that were asked for; whole iterations are trained, so that the agent may have more.
    """

    learner: Learner
    market: api.Setup
    history: list[dict[str, float]] = field(default_factory=list)
    requested: int | None = None

    def strategy(self) -> PolicyStrategy:
        """The agent as a strategy, for `backtest`."""
        agents = [self.learner.snapshot(data_sha256=self.market.panel.sha256)]
        return PolicyStrategy(agents, name="agent", feature_tables=self.market.config.features.tables)

    def to_frame(self) -> pd.DataFrame:
        """Learning curve: one row for each iteration, with its samples and metrics."""
        return pd.DataFrame(self.history).set_index("samples")

    def plot(self) -> Figure:
        """Mean reward of each iteration over samples, and its moving average."""
        return learning_figure(self.to_frame()["reward"], f"Learning curve of {self.learner.config.algorithm}")

    @check_arguments
    def save(self, path: str | Path) -> Path:
        """Write `path`.json and `path`.safetensors; `fp.load_agent` reads them as a strategy."""
        return api.save(self.learner, path, self.market)

    @check_arguments
    def export(self, folder: str | Path, formats: Sequence[Literal["torch", "onnx"]] = ("torch",)) -> list[Path]:
        """Write the agent for programs without finrl_pod: agent.pt2 (torch.export), agent.onnx, and agent.json."""
        from finrl_pod_app.training.agent_export import export_strategy

        return export_strategy(self.strategy(), Path(folder), formats, symbols=self.market.panel.symbols)

    def __repr__(self) -> str:
        samples = self.learner.samples[0]
        is_rounded = self.requested is not None and samples > self.requested
        request_note = f" ({self.requested:,} requested, whole iterations trained)" if is_rounded else ""
        return f"TrainedAgent({self.learner.config.algorithm!r}, samples={samples:,}{request_note})"

    def _repr_html_(self) -> str:
        last = self.history[-1] if self.history else {}
        rows = [(name, value) for name, value in last.items()]
        reward = self.market.config.environment.reward.replace("_", " ")
        note = f"Of the last iteration; the reward ({reward}) is the mean of a step. Next: fp.backtest(agent)."
        return table_html(f"{self.learner.config.algorithm}, {self.learner.samples[0]:,} samples", rows, note=note)


@check_arguments
def train(
    market: api.Setup | Prices,
    samples: int = 500_000,
    *,
    seed: int | None = None,
    progress: bool | None = None,
    warm_start: str | Path | None = None,
    callback: Callback | None = None,
    threads: int | None = None,
) -> TrainedAgent:
    """Train one agent for `samples` environment steps on the training split.

    Whole iterations are trained, at least one: `fp.train(market, 1)` trains 1,008 samples of the preset "laptop". A
    closed form is solved instead. market: result of `make_market`, or prices. seed: random seed; default: the config.
    progress: show a bar; by default on a terminal and in a notebook. warm_start: path of a saved agent. callback:
    called with the learner and its metrics after every iteration, such as `fp.open_logger(...).report`; returning False
    stops the training. threads: CPU threads of this training; by default the config, or one for a linear policy. Raises
    InputError for invalid arguments.
    """
    if isinstance(market, str) and (market.startswith(PREFIX) or is_custom(market)):
        raise InputError(f"market must be prices, got the environment {market}: fp.train_env({market!r}, steps, out)")
    setup = market if isinstance(market, api.Setup) else make_market(market)
    config = setup.config
    samples = api.whole_number("samples", samples, 1)
    seed = None if seed is None else api.whole_number("seed", seed, 0, MAX_SEED)
    threads = None if threads is None else api.whole_number("threads", threads, 0, MAX_THREADS)
    if threads is None:
        # The operations of one linear policy are so small that further threads only wait for each other.
        threads = config.threads or (1 if getattr(config.agent, "policy", None) == "linear" else 0)
    history: list[dict[str, float]] = []
    shows_progress = progress_shown(progress)
    compile_kernels(partial(print, file=sys.stderr) if shows_progress else lambda _: None)
    with progress_bar(is_visible=shows_progress) as advance:

        def report(learner: Learner, metrics: Any) -> bool | None:
            row = {name: float(value.float().mean()) for name, value in metrics.items()}
            history.append({"samples": learner.samples[0], **row})
            iteration_samples = history[0]["samples"]  # of an iteration
            total = -(-samples // iteration_samples) * iteration_samples
            advance(learner.samples[0], total, f"mean reward {row['reward']:.4g}")
            return None if callback is None else callback(learner, metrics)

        start = solved_start(config, setup.market, setup.splits) if is_solved(config.agent) else None
        with restored_threads():
            learner = Learner(
                setup.environment(),
                config.agent,
                seed=config.seed if seed is None else seed,
                threads=threads,
                start=start,
            )
            if warm_start is not None:
                learner.restore(api.read_snapshot(warm_start))
            # A closed form is solved, whatever the number of samples.
            learner.learn(1 if isinstance(config.agent, ClosedFormConfig) else samples, callback=report)
    return TrainedAgent(learner, setup, history, samples if warm_start is None else None)


def progress_shown(progress: bool | None) -> bool:
    """Whether to show progress: by default on a terminal and in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules if progress is None else progress


@contextlib.contextmanager
def progress_bar(*, is_visible: bool) -> Iterator[Any]:
    """A progress bar, or nothing if it is not visible."""
    if not is_visible:
        yield lambda samples, total, detail: None  # noqa: ARG005
        return
    from rich.progress import Progress

    with Progress(transient=True) as bars:
        task = bars.add_task("training", total=None)

        def advance(samples: int, total: int, detail: str) -> None:
            bars.update(task, completed=samples, total=total, description=f"training, {detail}")

        yield advance
