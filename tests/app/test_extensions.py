"""Extensions of one's own: `new` and `check`, runs that keep their files, policies, algorithms and costs in use."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from finrl_pod_app.cli.main import run
from finrl_pod_app.setup.extension_checks import check_extension
from finrl_pod_app.setup.extensions import NEW_KINDS

from finrl_pod import user_files
from finrl_pod.data.store import Store
from finrl_pod.errors import ConfigError
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.settings.algorithm_configs import A2CConfig
from finrl_pod.settings.algorithm_registry import ALGORITHMS, algorithm_info, register_algorithm
from finrl_pod.settings.run import FeatureConfig, RunConfig, parse
from tests.app.multi_agent.test_train_many import MARKET
from tests.app.small_run import run_backtest, run_tournament, small_config, small_panel

OWN = """
import numpy as np
import torch
from finrl_pod_envs.custom.base_env import BaseVecEnv, Transition

from finrl_pod.rl.algorithms.a2c import LossAlgorithm

def back(panel):
    out = np.zeros_like(panel.close)
    out[5:] = np.nan_to_num(panel.close[5:] / panel.close[:-5] - 1)
    return out

def ahead(panel):
    out = np.zeros_like(panel.close)
    out[:-1] = np.nan_to_num(panel.close[1:] / panel.close[:-1] - 1)
    return out

def mean_of_all(panel):
    return panel.close - np.nanmean(panel.close)

def changes_panel(panel):
    panel.close[:] = 1
    return panel.close.copy()

def wrong_shape(panel):
    return panel.close[:, 0]

def random_feature(panel):
    return np.random.default_rng().normal(size=panel.close.shape)

def share(interval):
    return interval.after / interval.after.sum()

def nan_reward(interval):
    return interval.after * float("nan")

class Greedy:
    def target_weights(self, window, positions):
        return np.ones(window.close.shape[1])

class Restless:
    def target_weights(self, window, positions):
        n = window.close.shape[1]
        return np.random.default_rng().dirichlet(np.ones(n)) * window.tradable[-1]

class Proportional:
    name, needs_volume = "own", False
    def cost(self, amount, prices, liquidity):
        return 0.001 * amount * prices
    def slope(self, amount, prices, liquidity):
        return (0.001 * prices).expand_as(amount)

class WrongSlope(Proportional):
    def slope(self, amount, prices, liquidity):
        return (0.002 * prices).expand_as(amount)

class Mixing(LossAlgorithm):
    def loss(self, batch):
        log_probability, value, _ = self.evaluate(batch)
        excess = batch.returns - value
        return -(log_probability * (excess - excess.mean()).detach()).mean((1, 2)) + excess.square().mean((1, 2))

class Endless(BaseVecEnv):
    observation_size = 1
    max_steps = 10**9
    def start(self):
        return {"x": self.normal()}
    def transition(self, state, action):
        return Transition({"x": state["x"] + action[..., 0]}, -state["x"].square())
    def observe(self, state):
        return state["x"].unsqueeze(-1)

nothing = 3
"""

FAULTY = """
import sys

import numpy as np
import torch
from finrl_pod_envs.custom.base_env import BaseVecEnv, Transition

from finrl_pod.rl.algorithms.a2c import LossAlgorithm
from finrl_pod.rl.networks.policies import BasePolicy
from finrl_pod.settings.algorithm_configs import OnPolicyConfig

def exits(panel):
    sys.exit(0)

def infinite(panel):
    return np.full_like(panel.close, np.inf)

def in_place(interval):
    interval.after.mul_(2)
    return (interval.after / interval.before).log()

class NoName:
    def cost(self, amount, prices, liquidity):
        return 0.001 * amount * prices
    def slope(self, amount, prices, liquidity):
        return (0.001 * prices).expand_as(amount)

class FloatCost(NoName):
    name, needs_volume = "float", False
    def cost(self, amount, prices, liquidity):
        return 0.0

class Scores(BasePolicy):
    def weights(self, generator):
        return {"w": 0.01 * torch.randn(self.spec.inputs, generator=generator), "cash": torch.zeros(1)}
    def mean(self, params, features, account, tradable):
        scores = torch.einsum("pknf,pf->pkn", features, params["w"]).unsqueeze(2).expand(*account.shape[:3], -1)
        if not self.spec.has_cash_score:
            return scores
        return torch.cat([params["cash"].view(-1, 1, 1, 1).expand(*account.shape[:3], 1), scores], -1)
    def value(self, params, features, account, tradable):
        return torch.einsum("pknf,pf->pk", features, params["w"]).unsqueeze(2).expand(account.shape[:3])

class Noisy(Scores):
    def mean(self, params, features, account, tradable):
        mean = super().mean(params, features, account, tradable)
        return mean + torch.randn_like(mean)

class RaisingPolicy(Scores):
    def mean(self, params, features, account, tradable):
        raise ValueError("no scores")

class Mixing(Scores):
    def weights(self, generator):
        cash = {"cash": torch.zeros(1)} if self.spec.has_cash_score else {}
        return {"w": torch.zeros(self.spec.inputs), **cash}

class MixingAccounts(Mixing):
    def mean(self, params, features, account, tradable):
        return super().mean(params, features, account, tradable) * account[..., :1].amax(2, keepdim=True)

class MixingBars(Mixing):
    def mean(self, params, features, account, tradable):
        return super().mean(params, features - features.mean(1, keepdim=True), account, tradable)

class MixingMembers(Mixing):
    def mean(self, params, features, account, tradable):
        last = {name: x[-1:] + 0 * x for name, x in params.items()}
        return super().mean(last, features, account, tradable)

class MixingValues(Mixing):
    def value(self, params, features, account, tradable):
        return super().value(params, features, account, tradable) + account[..., 0].mean(-1, keepdim=True)

class RaisingLoss(LossAlgorithm):
    Config = OnPolicyConfig
    def loss(self, batch):
        return batch.rewards

class Walk(BaseVecEnv):
    observation_size = 1
    max_steps = 20
    def start(self):
        print("START")
        return {"x": self.normal()}
    def transition(self, state, action):
        return Transition({"x": state["x"] + action[..., 0]}, -state["x"].square())
    def observe(self, state):
        return state["x"].unsqueeze(-1)

class WrongSize(Walk):
    observation_size = 2

class WrongReward(Walk):
    def transition(self, state, action):
        state, reward, ended = super().transition(state, action)
        return Transition(state, reward.unsqueeze(-1), ended)

class Choices(Walk):
    actions = 4

class NoSize(Walk):
    observation_size = None

class InPlace(Walk):
    def transition(self, state, action):
        state["x"].add_(action[..., 0])
        return Transition(state, -state["x"].square())

class FloatDone(Walk):
    def transition(self, state, action):
        state, reward, _ = super().transition(state, action)
        return Transition(state, reward, (state["x"].abs() > 3).float())

class Late(Walk):
    steps = 0
    def transition(self, state, action):
        self.steps += 1
        if self.steps > 40:
            raise KeyError("late")
        return super().transition(state, action)

class Source:
    def fetch(self, symbols, start, end, bar):
        return None

class Narrow:
    def fetch(self, symbols):
        return None
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "faulty.py"
    path.write_text(FAULTY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    return path


@pytest.mark.parametrize(
    ("name", "rule", "message"),
    [
        ("exits", "error", "faulty.py:exits failed: SystemExit: 0 (faulty.py, line 13)"),
        ("infinite", "undefined", "NaN or infinite on all"),
        ("in_place", "side effect", "it changed interval.after"),
        ("NoName", "error", "must have name, needs_volume, cost"),
        ("FloatCost", "type", "cost must return a tensor like the amount, got float"),
        ("Scores", "gradient", "the weight 'cash' has no effect without a score of cash"),
        ("Noisy", "repeatable", "two calls with the same inputs differ"),
        (
            "MixingAccounts",
            "accounts",
            "the result of mean() for an account depends on the other accounts in the batch",
        ),
        ("MixingBars", "bars", "the result of mean() for a bar depends on the other bars in the batch"),
        ("MixingMembers", "members", "the result of mean() for a member depends on the other members in the batch"),
        ("MixingValues", "accounts", "the result of value() for an account depends on the other accounts"),
        ("InPlace", "outputs", "step 1 overwrote the observation that was returned before it"),
        ("FloatDone", "error", "faulty.py:FloatDone.transition (faulty.py, line "),
        ("FloatDone", "error", "returned a tensor of dtype torch.float32 as terminated; return a bool tensor"),
        ("Late", "error", "faulty.py:Late failed: KeyError: 'late' (faulty.py, line "),
        ("NoSize", "error", "`finrl-pod new environment NAME`"),
        ("Choices", "error", 'set action_kind = "discrete" for choices 0 to 3'),
        ("Source", "fetch", "must return a Panel or a DataFrame, got NoneType"),
        ("Narrow", "fetch", "must have fetch(symbols, start, end, bar)"),
    ],
)
def test_faults_are_told_by_their_cause(faulty: Path, name: str, rule: str, message: str) -> None:
    (fault,) = check_extension(f"{faulty.name}:{name}")
    assert fault.rule == rule
    assert message in fault.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Late", "faulty.py:Late failed: KeyError: 'late' (faulty.py, line "),
        ("WrongSize", "observation of reset() has the shape (1, 16, 1), the contract asks for (1, 16, 2)"),
        ("WrongReward", "reward of step 1 has the shape (1, 16, 1)"),
        ("Choices", "faulty.py:Choices has actions = 4"),
    ],
)
def test_training_tells_faults_of_an_environment_in_one_sentence(
    faulty: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "--env", f"{faulty.name}:{name}", "--algorithm", "ppo", "--steps", "3000"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("finrl-pod: ")
    assert message in told


def test_an_environment_may_print(faulty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "--env", f"{faulty.name}:Walk", "--algorithm", "ppo", "--steps", "2048", "--evaluate", "1"]
    assert run([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["steps"] == 2048
    assert "START" in captured.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("policy=faulty.py:RaisingPolicy", "faulty.py:RaisingPolicy failed: ValueError: no scores (faulty.py, line "),
        ("algorithm=faulty.py:RaisingLoss", "faulty.py:RaisingLoss failed: AttributeError: 'Batch' object has no"),
    ],
)
def test_tournament_tells_what_own_code_raised_in_one_sentence(
    faulty: Path, setting: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("small.toml").write_text("[tournament]\npods = 2\ngenerations = 1\nsamples_per_generation = 2000\n")
    assert run(["tournament", "small.toml", "--set", f"agent.{setting}", "--out", "run"]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "setting", "message"),
    [
        ("processes", 'features.names=["faulty.py:here"]', "faulty.py:here failed: KeyError: 'in a child'"),
        ("ray", "agent.policy=faulty.py:RaisingPolicy", "faulty.py:RaisingPolicy failed: ValueError: no scores"),
    ],
)
def test_shards_tell_what_own_code_raised_in_one_sentence(
    faulty: Path, engine: str, setting: str, message: str
) -> None:
    # In a process, as Ray can be started once only. The feature fails where shards compute it, not in the driver.
    (faulty.parent / "neighbour.py").write_text("x = 1\n")
    faulty.write_text(
        f"import neighbour, os\n{FAULTY}\ndef here(panel):\n    if os.getpid() != {{}}:\n"
        "        raise KeyError('in a child')\n    return panel.close\n".replace("{}", "int(os.environ['DRIVER'])")
    )
    Path("small.toml").write_text("[tournament]\npods = 2\ngenerations = 1\nsamples_per_generation = 2000\n")
    code = (
        "import os, sys; os.environ['DRIVER'] = str(os.getpid())\n"
        "from finrl_pod_app.cli.main import run\nsys.exit(run(sys.argv[1:]))"
    )
    command = ["tournament", "../small.toml", "--engine", engine, "--set", setting.replace("faulty", "../faulty")]
    (faulty.parent / "elsewhere").mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", code, *command, "--out", "run"],
        cwd=faulty.parent / "elsewhere", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    sentence = " ".join(ended.stderr.split())  # the terminal's width breaks it anywhere
    assert message in sentence
    assert "(faulty.py, line " in sentence
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_the_collector_uses_files_of_ones_own_and_tells_what_they_raised(
    faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It fails after forty steps in a file of one's own."""
    command = ["train", "--algorithm", "sac", "--pipeline", "async", "--steps", "2000", "--evaluate", "1"]
    command += ["--set", "learning_starts=64", "--set", "batch_size=32", "--set", "buffer_size=2000"]
    assert run([*command, "--env", "faulty.py:Late", "--out", "late"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("finrl-pod: faulty.py:Late failed: KeyError: 'late' (faulty.py, line ")


def test_kinds_without_a_template_are_refused_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", "cost", "mine"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("finrl-pod: KIND must be one of feature, reward, strategy")
    assert "Value error" not in told
    assert "costs, sources and brokers" in told


@pytest.mark.slow
@pytest.mark.parametrize("kind", NEW_KINDS)
def test_new_files_keep_their_contract(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new", kind, f"first_{kind}", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (tmp_path / made["file"]).is_file()
    assert made["target"].startswith(f"first_{kind}.py:")
    assert run(["check", made["target"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "target": made["target"], "kind": kind, "passed": True, "faults": [],
    }  # fmt: skip
    assert "noqa" not in (tmp_path / made["file"]).read_text()
    assert len((tmp_path / made["file"]).read_text().splitlines()) <= {"algorithm": 60, "environment": 40}.get(kind, 40)
    assert run(["new", kind, f"first_{kind}"]) == 2
    assert "already exists" in capsys.readouterr().err


# Kind of a template -> its text, and the text with a value of a later bar or of another account or member; the rule.
PLANTS = {
    "feature": ("/ windows.mean(-1)", "/ np.roll(windows, -1, 0).mean(-1)", "look-ahead"),
    "reward": ("interval.after / ", "interval.after.roll(-1, -1) / ", "accounts"),
    "strategy": ("lookback = 60", 'feature_names = (__file__ + ":ahead",)', "look-ahead"),
    "policy": ('"pknf,pfh->pknh", features,', '"pknf,pfh->pknh", features.roll(-1, 1),', "bars"),
    "algorithm": ("batch.returns - ", "batch.returns.roll(-1, 0) - ", "members"),
    "environment": ('state["position"] + 0.1', 'state["position"].roll(-1, 0) + 0.1', "members"),
}
AHEAD = "\n\ndef ahead(panel):\n    return np.nan_to_num(np.roll(panel.close, -1, 0))\n"


@pytest.mark.slow
def test_new_tests_pass_and_catch_a_planted_look_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(PLANTS) == set(NEW_KINDS)
    monkeypatch.chdir(tmp_path)
    for kind, (sound, planted, _) in PLANTS.items():
        for name in (f"sound_{kind}", f"planted_{kind}"):
            assert run(["new", kind, name]) == 0
        file = tmp_path / f"planted_{kind}.py"
        text = file.read_text()
        assert sound in text
        file.write_text(text.replace(sound, planted) + AHEAD * (kind == "strategy"))
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "-rA", "--tb=no"]
    environment = {**os.environ, "COLUMNS": "2000"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    results = dict(re.findall(r"^(?:PASSED|FAILED) test_(\w+)\.py::\S+(.*)$", ended.stdout, re.MULTILINE))
    assert {name for name, message in results.items() if not message} == {f"sound_{kind}" for kind in PLANTS}
    for kind, (_, _, rule) in PLANTS.items():
        assert f"Fault(rule='{rule}'" in results[f"planted_{kind}"], results[f"planted_{kind}"]


@pytest.mark.parametrize("name", ["1st", "my-feature", "class", ""])
def test_invalid_names_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", "feature", name]) == 2
    assert "NAME must" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("ahead", "look-ahead"),
        ("mean_of_all", "look-ahead"),
        ("changes_panel", "side effect"),
        ("wrong_shape", "error"),
        ("random_feature", "repeatable"),
        ("share", "accounts"),
        ("nan_reward", "error"),
        ("Greedy", "error"),
        ("Restless", "repeatable"),
        ("WrongSlope", "slope"),
        ("Mixing", "members"),
        ("Endless", "end of episodes"),
    ],
)
def test_broken_rules_are_named(own: Path, name: str, rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rule in [fault.rule for fault in check_extension(f"{own}:{name}")]
    assert run(["check", f"{own}:{name}"]) == 1
    out = capsys.readouterr().out
    assert f"{own}:{name} breaks the contract" in out
    assert f"- {rule}: " in out


CONTROL = """
import torch
from finrl_pod.rl.networks.policies import BasePolicy

class Rows(BasePolicy):
    def weights(self, generator):
        draw = lambda *shape: torch.randn(*shape, generator=generator)
        return {"actor_w": draw(self.spec.features, self.spec.action_size), "critic_w": draw(self.spec.features, 1)}

    def mean(self, params, features, account, tradable):
        return torch.einsum("pkas,psd->pkad", account, params["actor_w"])

    def value(self, params, features, account, tradable):
        return torch.einsum("pkas,psd->pka", account, params["critic_w"])
"""


@pytest.mark.slow
def test_policies_for_control_tasks_are_checked_on_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("control.py").write_text(CONTROL)
    assert check_extension("control.py:Rows") == []
    terms = ["train", "--env", "gym:Pendulum-v1", "--algorithm", "ppo", "--steps", "64", "--set", "horizon=16"]
    assert run([*terms, "--set", "policy=control.py:Rows", "--evaluate", "1", "--out", "run", "--json"]) == 0
    assert run(["new", "policy", "MyNet"]) == 0
    capsys.readouterr()
    assert run([*terms, "--set", "policy=my_net.py:MyNet", "--out", "other"]) == 2
    message = capsys.readouterr().err
    assert "`account`" in message
    assert "einsum" in message
    assert check_extension("my_net.py:MyNet") == []


@pytest.mark.parametrize("name", ["Staggered", "Choices"])
def test_environments_of_several_agents_are_checked(name: str) -> None:
    assert check_extension(f"tests.envs.gymnasium_pool.parallel_envs:{name}") == []


def test_batched_markets_are_checked(tmp_path: Path) -> None:
    (tmp_path / "pair.py").write_text(MARKET)
    assert check_extension(f"{tmp_path / 'pair.py'}:Pair") == []
    assert [fault.rule for fault in check_extension(f"{tmp_path / 'pair.py'}:Flat")] == ["error"]


STILL = """
import gymnasium, numpy as np

class Still(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 0.0, False, self.t >= 10, {}
"""


def test_observations_that_hardly_change_are_no_fault(tmp_path: Path) -> None:
    (tmp_path / "still.py").write_text(STILL)
    assert check_extension(f"{tmp_path / 'still.py'}:Still") == []


def test_environments_are_checked_with_steps_and_members_of_ones_own(
    faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", "faulty.py:Walk", "--members", "1"]) == 0
    assert run(["check", "faulty.py:Walk", "--steps", "10"]) == 1
    assert "within 10 steps" in capsys.readouterr().out
    (faulty.parent / "own.py").write_text(OWN)
    assert run(["check", "own.py:back", "--members", "1"]) == 2
    assert "--steps and --members are for environments, and own.py:back is a feature" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["back", "Proportional"])
def test_correct_extensions_pass(own: Path, name: str) -> None:
    assert check_extension(f"{own}:{name}") == []


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("own.py:absent", "has no absent; it defines"),
        ("own.py:nothing", "is int, not a function or a class"),
        ("gone.py:f", "there is no file"),
        ("nothing", "named file.py:Name or package.module:Name"),
    ],
)
def test_targets_that_cannot_be_checked_are_bad_input(
    own: Path, target: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(own.parent)
    assert run(["check", target]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_runs_work_without_their_own_files_and_with_their_own_version(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    Store().save(small_panel())
    features = FeatureConfig((f"{own}:back", "return_5"))
    reward = tmp_path / "objective.py"
    reward.write_text("def growth(interval):\n    return (interval.after / interval.before).log()\n")
    config = small_config()
    config = dataclasses.replace(
        config, features=features, environment=dataclasses.replace(config.environment, reward=f"{reward}:growth")
    )
    run_tournament(config, tmp_path / "run", device="cpu")
    (kept,) = (tmp_path / "run" / user_files.FOLDER).glob("own@*.py")
    assert kept.read_text() == OWN
    before = run_backtest(tmp_path / "run")["test"]["strategies"]["champion"]
    own.write_text(OWN.replace("5", "7"))
    reward.unlink()
    monkeypatch.setattr(user_files, "_KEPT", {})
    assert run_backtest(tmp_path / "run")["test"]["strategies"]["champion"] == before
    own.unlink()
    monkeypatch.setattr(user_files, "_KEPT", {})
    assert run_backtest(tmp_path / "run")["test"]["strategies"]["champion"] == before
    kept.write_text("changed = True")
    monkeypatch.setattr(user_files, "_KEPT", {})
    with pytest.raises(user_files.InputError, match="was changed"):
        run_backtest(tmp_path / "run")


def test_pinned_references_name_the_text(own: Path) -> None:
    reference = user_files.pin(f"{own}:back")
    assert user_files.unpinned(reference) == "own.py:back"
    assert user_files.pin(reference) == reference
    first = user_files.user_object(reference, "a test")
    own.write_text(OWN + "\n# another version\n")
    second = user_files.pin(f"{own}:back")
    assert second != reference
    assert user_files.user_object(reference, "a test") is first
    assert np.array_equal(user_files.user_object(second, "a test")(small_panel()), first(small_panel()))
    config = user_files.pinned(dataclasses.replace(RunConfig(), features=FeatureConfig((f"{own}:back",))))
    assert config.features.names == (second,)


@pytest.mark.slow
def test_cost_of_ones_own_is_charged_in_environments_and_backtests(own: Path) -> None:
    from finrl_pod_app.setup.extension_checks import random_market, random_panel
    from finrl_pod_envs.trading_envs import make_env
    from finrl_pod_strategies.baselines import run_baseline

    from finrl_pod.market.rules import rules_of
    from finrl_pod.settings.run import EnvironmentConfig

    market, panel, reached = random_market(), random_panel(), []
    usual = EnvironmentConfig(envs=4, group=2, window=64, cost_bps=10.0)
    other = dataclasses.replace(usual, cost_bps=0.0, cost_model=f"{own}:Proportional")
    for config in (usual, other):
        env = make_env(market, config)
        env.reset(1)
        action = torch.randn(20, 1, 4, env.action_size, generator=torch.Generator().manual_seed(3))
        steps = [env.step(x).equity.clone() for x in action]
        result = run_baseline("equal_weight", panel, MarketPeriod(market, 60, 400, rules_of(config), 1e6))
        reached.append((torch.stack(steps), result))
    torch.testing.assert_close(reached[0][0], reached[1][0], rtol=1e-4, atol=0)
    np.testing.assert_allclose(reached[0][1].equity, reached[1][1].equity, rtol=1e-6)
    assert reached[1][1].cost_parts["own"].sum() == pytest.approx(reached[1][1].costs.sum())
    with pytest.raises(ConfigError, match="must have name, needs_volume"):
        rules_of(dataclasses.replace(usual, cost_model=f"{own}:Greedy"))


def test_algorithms_can_be_registered_by_name(own: Path) -> None:
    from finrl_pod_app.templates.algorithm import MyAlgorithm

    register_algorithm("own_reinforce")(MyAlgorithm)
    assert algorithm_info("own_reinforce").config_class is MyAlgorithm.Config
    agent = parse({"agent": {"algorithm": "own_reinforce", "gae_lambda": 0.5}}).agent
    assert (agent.algorithm, agent.gae_lambda, agent.learning_rate) == ("own_reinforce", 0.5, 1e-2)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="is built in"):
        register_algorithm(next(iter(ALGORITHMS)))
    with pytest.raises(ConfigError, match="derived from"):
        parse({"agent": {"algorithm": f"{own}:Greedy"}})


def test_policies_of_ones_own_are_for_algorithms_that_use_them(tmp_path: Path) -> None:
    from finrl_pod_app.setup.extension_checks import random_market
    from finrl_pod_envs.trading_envs import make_env

    from finrl_pod.rl.algorithms.factory import make_algorithm
    from finrl_pod.settings.algorithm_configs import SACConfig
    from finrl_pod.settings.run import EnvironmentConfig

    env = make_env(random_market(), EnvironmentConfig(envs=8, group=4, window=64))
    with pytest.raises(ConfigError, match="linear, mlp, got 'rnn'"):
        make_algorithm(A2CConfig(policy="rnn"), env)
    file = tmp_path / "own_policy.py"
    file.write_text(Path("app/finrl_pod_app/templates/policy.py").read_text())
    with pytest.raises(ConfigError, match="can be trained by on-policy"):
        make_algorithm(SACConfig(policy=f"{file}:MyPolicy"), env)


@pytest.mark.slow
def test_runs_of_registered_parts_say_what_another_process_needs(
    faulty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import finrl_pod as fp
    from finrl_pod.data import features
    from finrl_pod.rl.networks import policies
    from finrl_pod.settings import algorithm_registry

    for module, name in ((features, "_FEATURES"), (policies, "_POLICIES"), (algorithm_registry, "_CLASSES")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    Store().save(small_panel())
    fp.register_feature("only_here")(lambda panel: panel.close)
    fp.register_policy("only_here")(user_files.user_object("faulty.py:Mixing", "a test"))
    config = dataclasses.replace(small_config(), features=FeatureConfig(("only_here", "return_5")))
    config = dataclasses.replace(config, agent=dataclasses.replace(config.agent, policy="only_here"))
    fp.run_tournament(config, out="run", device="cpu")
    del features._FEATURES["only_here"]
    assert run(["audit", "run"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "call fp.register_feature('only_here') first in this process" in told
    fp.register_feature("only_here")(lambda panel: panel.close)
    del policies._POLICIES["only_here"]
    assert run(["backtest", "run"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "call fp.register_policy('only_here') first in this process" in told
