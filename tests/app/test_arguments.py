"""Wrong arguments of the public functions: an error of the project that names the argument and stays short."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pytest

import finrl_pod as fp
from finrl_pod.arguments import check_arguments
from finrl_pod.errors import InputError, shown

MAX_MESSAGE = 500
FRAME = pd.DataFrame(
    50 * np.exp(np.random.default_rng(0).normal(3e-4, 0.01, (1500, 3)).cumsum(0)),
    index=pd.bdate_range("2012-01-02", periods=1500),
    columns=list("ABC"),
)
WRONG_VALUES: Mapping[str, object] = {
    "3": 3,
    "-1": -1,
    "0": 0,
    "3.5": 3.5,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "a word": "no such thing",
    "no text": "",
    "5,000 characters": "x" * 5000,
    "2,000 words": "ab " * 2000,
    "None": None,
    "a list": [1],
    "a dict": {},
    "an object": object(),
    "a frame": FRAME,
    "bytes": b"x",
    "True": True,
}
NEVER_VALID = ("an object", "bytes")


class PublicCall(NamedTuple):
    """A public function with arguments that are valid, or fail before anything takes long."""

    function: Callable[..., object]
    arguments: Mapping[str, object]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PublicCall]:
    folder = tmp_path_factory.mktemp("arguments")
    market = fp.make_market(FRAME, "quick")
    agent = fp.train(market, 100, progress=False)
    result = fp.backtest("equal_weight", market)
    result.save(folder / "saved.json")
    text = folder / "file.txt"
    text.write_text("no folder of a run")
    unusable = {"config": "quick", "prices": "no such panel", "out": text}  # one of them always fails
    return {
        "load_prices": PublicCall(fp.load_prices, {"source": FRAME}),
        "make_market": PublicCall(fp.make_market, {"prices": FRAME, "config": "quick"}),
        "load_config": PublicCall(fp.load_config, {"config": "quick"}),
        "prepare": PublicCall(fp.prepare, {"config": market.config, "panel": market.panel}),
        "train": PublicCall(fp.train, {"market": market, "samples": 100, "progress": False}),
        "train_env": PublicCall(
            fp.train_env, {"env": "gym:CartPole-v1", "steps": 8, "out": text, "algorithm": "ppo", "evaluation": 0}
        ),
        "load_env_agents": PublicCall(fp.load_env_agents, {"folder": folder}),
        "backtest": PublicCall(fp.backtest, {"strategy": "equal_weight", "prices": market}),
        "orders": PublicCall(
            fp.orders, {"strategy": "equal_weight", "prices": market, "cash": 1e5, "date": "2017-06-01"}
        ),
        "run_tournament": PublicCall(fp.run_tournament, unusable),
        "walkforward": PublicCall(fp.walkforward, unusable),
        "audit": PublicCall(fp.audit, {"target": "no such strategy", "prices": "no such panel"}),
        "check": PublicCall(fp.check, {"target": "no_such_file.py:Name"}),
        "judge": PublicCall(fp.judge, {"run": folder}),
        "load_run": PublicCall(fp.load_run, {"folder": folder}),
        "open_logger": PublicCall(fp.open_logger, {"kind": "tensorboard", "folder": folder / "logs"}),
        "save_agent": PublicCall(fp.save_agent, {"learner": agent.learner, "path": folder / "a", "setup": market}),
        "gym": PublicCall(market.gym, {}),
        "gym_vector": PublicCall(market.gym_vector, {"envs": 2}),
        "span": PublicCall(market.span, {"split": "test"}),
        "environment": PublicCall(market.environment, {}),
        "strategy": PublicCall(market.strategy, {"model": object()}),
        "agent.export": PublicCall(agent.export, {"folder": folder / "export"}),
        "agent.save": PublicCall(agent.save, {"path": folder / "agent"}),
        "Backtest.plot": PublicCall(result.plot, {}),
        "Backtest.comparison": PublicCall(result.comparison, {}),
        "Backtest.save": PublicCall(result.save, {"path": folder / "copy.json"}),
        "Backtest.load": PublicCall(fp.Backtest.load, {"path": folder / "saved.json"}),
        "judge_returns": PublicCall(fp.judge_returns, {"agent": [0.1] * 30, "base": [0.0] * 30, "cash": 0.0}),
        "make_panel": PublicCall(
            fp.make_panel, {"times": FRAME.index, "symbols": "A", "columns": {"close": FRAME[["A"]]}}
        ),
        "make_env": PublicCall(fp.make_env, {"market": market.market, "config": market.config.environment}),
        "GymMarketEnv": PublicCall(fp.GymMarketEnv, {"market": market.market}),
        "GymVectorEnv": PublicCall(fp.GymVectorEnv, {"market": market.market, "envs": 2}),
        "load_agent": PublicCall(fp.load_agent, {}),
        "register_feature": PublicCall(fp.register_feature, {"name": "wrong_arguments"}),
        "register_algorithm": PublicCall(fp.register_algorithm, {"name": "wrong_arguments"}),
        "register_policy": PublicCall(fp.register_policy, {"name": "wrong_arguments"}),
    }


def cases(call: PublicCall) -> Iterator[tuple[str, str]]:
    """(parameter, name of a wrong value) of a call."""
    for name, parameter in inspect.signature(call.function).parameters.items():
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            yield from ((name, wrong) for wrong in WRONG_VALUES)


def fault(call: PublicCall, field: str, wrong: str) -> str:
    """What is wrong with how a function refuses a value; empty if nothing is."""
    try:
        call.function(**{**call.arguments, field: WRONG_VALUES[wrong]})
    except fp.FinrlPodError as error:
        message = str(error)
        if len(message) > MAX_MESSAGE:
            return f"{len(message)} characters"
        if "one of ," in message or "one of;" in message:
            return f"no choices: {message}"
        return f"does not name it: {message}" if wrong in NEVER_VALID and field not in message else ""
    except Exception as error:  # noqa: BLE001 - every other class of errors is the finding
        return f"{type(error).__name__}: {error}"[:200]
    return ""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch.export
def test_wrong_arguments_are_refused_in_a_short_sentence_that_names_them(
    calls: dict[str, PublicCall], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # some wrong values are paths
    all_cases = [(name, *case) for name, call in calls.items() for case in cases(call)]
    assert len(all_cases) >= 500
    faults = {
        f"{name}({field}={wrong})": text
        for name, field, wrong in all_cases
        if (text := fault(calls[name], field, wrong))
    }
    assert not faults


@pytest.mark.slow
@pytest.mark.parametrize("envs", [0, -1, True])
def test_a_vector_of_no_environments_is_refused(calls: dict[str, PublicCall], envs: int) -> None:
    with pytest.raises(InputError, match="envs"):
        calls["gym_vector"].function(envs=envs)


@pytest.mark.slow
def test_every_public_function_is_called_with_wrong_arguments(calls: dict[str, PublicCall]) -> None:
    functions = {getattr(fp, name) for name in dir(fp) if inspect.isfunction(getattr(fp, name))}
    assert functions <= {call.function for call in calls.values()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("environment.hmax", np.int64(50), 50.0),
        ("agent.learning_rate", np.float32(1e-3), 1e-3),
        ("environment.whole_shares", np.bool_(False), False),
        ("environment.cost_bps", np.float64(5), 5.0),
        ("tournament.pods", np.int32(2), 2),
        ("features.names", [np.str_("return_1")], ("return_1",)),
    ],
)
def test_settings_take_numbers_of_numpy(key: str, value: object, expected: object) -> None:
    config = fp.make_market(FRAME, "quick", settings={key: value}).config
    section, name = key.split(".")
    setting = getattr(getattr(config, section), name)
    assert setting == expected
    assert type(setting) is type(expected)


@pytest.mark.slow
def test_settings_take_paths(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text("def mine(transition, state):\n    return transition.log_growth, state\n")
    with pytest.raises(fp.FinrlPodError, match="reward"):
        fp.make_market(FRAME, "quick", settings={"environment.reward": tmp_path / "missing.py:mine"})


# ---------------------------------------------------------------------- the decorator


@check_arguments
def example(
    count: int = 1,
    share: float | None = None,
    names: list[str] | tuple[str, ...] = (),
    mode: Literal["a", "b"] = "a",
    *paths: str | Path,
    table: Mapping[str, float] | None = None,
) -> tuple[Any, ...]:
    """The arguments as they arrive."""
    return count, share, names, mode, paths, table


def test_numbers_of_numpy_arrive_as_those_of_python() -> None:
    count, share, names, _, _, table = example(np.int8(3), np.float64(0.5), ["x"], table={"A": np.int64(2)})
    assert (count, share, names, table) == (3, 0.5, ["x"], {"A": 2.0})
    assert [type(count), type(share), type(table["A"])] == [int, float, float]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 1.0}, "count must be a whole number, got 1.0"),
        ({"count": True}, "count must be a whole number, got True"),
        ({"share": float("nan")}, "share must be a number or None, got nan"),
        ({"share": "1"}, "share must be a number or None, got '1'"),
        ({"names": [1]}, r"names must be a list of text, got \[1\]"),
        ({"mode": "c"}, "mode must be one of a, b, got 'c'"),
        ({"table": {1: 1.0}}, "table must be a dict or None, got {1: 1.0}"),
        ({"size": 1}, r"example\(\): got an unexpected keyword argument 'size'"),
    ],
)
def test_values_of_other_types_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        example(**arguments)
    with pytest.raises(InputError, match="paths must be text or a path, got 3"):
        example(1, None, (), "a", 3)  # type: ignore[arg-type]


def test_shown_values_are_short_and_on_one_line() -> None:
    for value in ("x" * 5000, ["y"] * 5000, {"a": "z" * 5000}, FRAME, object(), 10**300, "a\nb"):
        assert len(shown(value)) <= 80
        assert "\n" not in shown(value)
    assert shown("a\nb") == "'a\\nb'"
    assert shown(FRAME) == "an object of the type DataFrame"
