"""Captured graphs: an iteration on a GPU is recorded once and replayed with one launch.

Thousands of small launches take longer to start than to run. A graph repeats them with the same addresses and numbers,
so it may replace an iteration whose buffers stay where they are and whose Python code does the same every time. That is
checked before a graph is used: two iterations are run eagerly and repeated, from the same state, by the graph.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence

import torch

from finrl_pod.market.protocols import MarketVecEnv
from finrl_pod.random import RandomState
from finrl_pod.rl.algorithms.base import Algorithm, Metrics
from finrl_pod.rl.algorithms.ppo import PPO
from finrl_pod.rl.experience import RolloutCollector
from finrl_pod.rl.optimisation.optimiser import RateFactor
from finrl_pod.types import Tensor

WARM_UP = 2  # iterations before the capture, in which buffers are allocated and libraries initialised
TOLERANCE = 1e-4  # between a graph and the eager iterations, relative and absolute: matrix products may be reordered
_log = logging.getLogger(__name__)


Work = Callable[[], None]
# Records work, done once by the time this returns what repeats it on the same tensors. The second argument: random
# states that the work draws from.
MakeGraph = Callable[[Work, Sequence[RandomState]], Work]


def cuda_graph(work: Work, generators: Sequence[RandomState]) -> Work:
    """A CUDA graph; torch raises RuntimeError for work that cannot be captured, such as a host synchronisation."""
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        if isinstance(generator, torch.Generator):  # others keep their state in tensors
            graph.register_generator_state(generator)
    with torch.cuda.graph(graph):  # records, and runs nothing
        work()
    graph.replay()
    return graph.replay


class GraphedIterations:
    """Iterations of an algorithm: eager at first, then by a graph.

    A graph is recorded again when the environment was reset or a setting replaced. Where the capture fails or the graph
    gives other numbers, iterations stay eager, and the log says why.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        collector: RolloutCollector,
        make_graph: MakeGraph,
        save: Callable[[], Mapping[str, Tensor]],
        restore: Callable[[Mapping[str, Tensor]], None],
    ) -> None:
        """save, restore: the state of a learner, restored in place."""
        self._algorithm = algorithm
        self._collector = collector
        self._make = make_graph
        self._save = save
        self._restore = restore
        self._factor = torch.ones_like(algorithm.settings["learning_rate"])
        self._metrics: Metrics = {}
        self._replay: Work | None = None
        self._addresses: tuple[int, ...] = ()
        self._warm = 0
        self.refusal = ""  # why iterations are eager
        self._refuse(_obstacle(algorithm, collector))

    @property
    def is_captured(self) -> bool:
        """Whether the next iteration replays a graph, unless a buffer moves before."""
        return self._replay is not None

    def iterate(self, rate_factor: RateFactor) -> Metrics:
        """As `Algorithm.iterate`."""
        if self.refusal:
            return self._algorithm.iterate(self._collector, rate_factor)
        if isinstance(rate_factor, Tensor):
            self._factor.copy_(rate_factor)
        else:
            self._factor.fill_(rate_factor)
        if self._replay is not None and self._addresses != self._now_at():
            self._replay = None
            self._warm = 0
        if self._replay is not None:
            self._replay()
        elif self._warm < WARM_UP:
            self._warm += 1
            self._run()
        else:
            return self._capture()
        return self._copy_metrics()

    def _run(self) -> None:
        self._metrics = self._algorithm.iterate(self._collector, self._factor)

    def _copy_metrics(self) -> Metrics:
        """Copies of the last metrics: a replay overwrites them."""
        return {name: column.clone() for name, column in self._metrics.items()}

    def _capture(self) -> Metrics:
        """Do an iteration eagerly and record it; keep the graph if it repeats this and the next iteration."""
        before = self._save()
        self._run()
        first = self._save()
        metrics = self._copy_metrics()
        self._run()
        second = self._save()
        self._restore(before)
        try:
            replay = self._make(self._run, self._algorithm.generators())
        except RuntimeError as error:
            self._refuse((str(error).splitlines() or ["unknown"])[0])
        else:
            graph_states = [self._save()]
            replay()
            graph_states.append(self._save())
            odd = [name for pair in zip((first, second), graph_states, strict=True) for name in _differences(*pair)]
            if odd:
                self._refuse(f"replayed iterations give another {odd[0]}")
            else:
                self._replay = replay
        self._restore(first)
        self._addresses = self._now_at()
        return metrics

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        if reason:
            _warn(reason)

    def _now_at(self) -> tuple[int, ...]:
        """Addresses of what an iteration begins with: environments, observation, settings, weights."""
        env = self._collector.env
        algorithm = self._algorithm
        state = env.checkpoint() if isinstance(env, MarketVecEnv) else {}
        tensors = (*state.values(), *algorithm.settings.values(), *algorithm.weights().values(), algorithm.alive)
        return tuple(x.data_ptr() for x in (*tensors, *self._collector.observation))


@functools.cache  # once, however many learners it holds for
def _warn(reason: str) -> None:
    _log.warning("training is not captured as a graph: %s", reason)


def _obstacle(algorithm: Algorithm, collector: RolloutCollector) -> str:
    """Why no capture is tried, "" if one is."""
    if not isinstance(algorithm, PPO):
        return f"{type(algorithm).__name__} decides on the host from one iteration to the next"
    if not isinstance(collector.env, MarketVecEnv):
        return f"{type(collector.env).__name__} is no market with buffers at fixed addresses"
    if algorithm.h_term is not None:
        return "the H-term chooses trajectories on the host"
    return ""


def _differences(expected_state: Mapping[str, Tensor], graph_state: Mapping[str, Tensor]) -> list[str]:
    """Names of numbers that differ."""
    return [
        name
        for name, x in expected_state.items()
        if x.is_floating_point()
        and not torch.allclose(x, graph_state[name], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    ]
