"""Custom parts of an installed package: package.module:Name works wherever file.py:Name does."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

import numpy as np
import pytest
from finrl_pod_app.cli.main import run
from finrl_pod_app.setup.extensions import find_extension
from finrl_pod_envs.custom.loader import load_env, source_sha256
from finrl_pod_strategies.base_portfolios import base_strategy
from finrl_pod_strategies.user_strategy import load_strategy, strategy_hash

from finrl_pod.data.features import compute
from finrl_pod.data.sources.factory import open_source
from finrl_pod.errors import ConfigError, InputError
from finrl_pod.market.rules import custom_cost, rules_of
from finrl_pod.paper.brokers.factory import open_broker
from finrl_pod.paper.domain.clocks import SystemClock
from finrl_pod.paper.settings import BrokerSettings, PaperConfig
from finrl_pod.paper.settings import parse as parse_paper
from finrl_pod.rl.networks.policies import policy_maker
from finrl_pod.settings.algorithm_registry import algorithm_info
from finrl_pod.settings.run import EnvironmentConfig, parse
from finrl_pod.user_files import is_custom

TEMPLATES = Path("app/finrl_pod_app/templates")
TEMPLATE_NAMES = {
    "feature": "my_feature",
    "reward": "my_reward",
    "strategy": "MyStrategy",
    "policy": "MyPolicy",
    "algorithm": "MyAlgorithm",
    "environment": "MyEnvironment",
}
NAMES = {**TEMPLATE_NAMES, "cost": "Fixed", "source": "Flat", "broker": "Memory"}
COST = """
class Fixed:
    name, needs_volume = "fixed", False
    def cost(self, amount, prices, liquidity):
        return 0.001 * amount * prices
    def slope(self, amount, prices, liquidity):
        return (0.001 * prices).expand_as(amount)
"""
SOURCE = """
import numpy as np
from finrl_pod.data.panel import make_panel

class Flat:
    name = "flat"
    def fetch(self, symbols, start, end, bar):
        days = np.datetime64("2024-01-01") + np.arange(300).astype("timedelta64[D]")
        close = np.linspace(10, 20, 300)[:, None] * np.ones(len(symbols))
        return make_panel(days.astype("datetime64[ns]"), list(symbols), {"close": close}, name="flat")
"""
BROKER = '''
class Memory:
    """A broker that is its own data feed, and does nothing."""
    def __init__(self, settings, clock):
        self.name, self.settings, self.clock_used = "memory", settings, clock
    def _nothing(self, *args, **terms):
        return None
    account = positions = submit = cancel = order = order_by_client_id = orders = fills_since = activities = _nothing
    updates = stream = reconnect_stream = assets = corporate_actions = clock = calendar = rate_limit = close = _nothing
    bars = minute_bars = latest = _nothing

class Deaf(Memory):
    bars = None
    def __getattribute__(self, name):
        if name == "latest":
            raise AttributeError(name)
        return super().__getattribute__(name)

def pair(settings, clock):
    return Memory(settings, clock), Memory(settings, clock)

def broken(settings, clock):
    raise OSError("no line")
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that can be imported; its name is new for each test, since modules stay imported."""
    code = tmp_path / f"acme_{uuid.uuid4().hex}"
    code.mkdir()
    (code / "__init__.py").write_text("")
    for kind in TEMPLATE_NAMES:
        (code / f"{kind}.py").write_text((TEMPLATES / f"{kind}.py").read_text())
    for kind, text in (("cost", COST), ("source", SOURCE), ("broker", BROKER)):
        (code / f"{kind}.py").write_text(text)
    (code / "failing.py").write_text("raise RuntimeError('broken package')")
    monkeypatch.syspath_prepend(tmp_path)
    base_strategy.cache_clear()
    return code


@pytest.mark.slow
@pytest.mark.parametrize("kind", NAMES)
def test_every_kind_is_found_checked_and_refused_alike(
    kind: str, package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{package.name}.{kind}:{NAMES[kind]}"
    assert find_extension(name)[0] == kind
    assert run(["check", name, "--json"]) == 0, capsys.readouterr()
    assert json.loads(capsys.readouterr().out)["kind"] == kind
    for reference, message in (
        (f"{package.name}.failing:{NAMES[kind]}", "could not be imported: RuntimeError: broken"),
        (f"{package.name}.absent:{NAMES[kind]}", f"there is no module {package.name}.absent for"),
        (f"{package.name}.{kind}:absent", f"the module {package.name}.{kind} has no absent"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            find_extension(reference)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "registration"),
    [
        ("agent.algorithm=absent_part", "fp.register_algorithm('absent_part')"),
        ("agent.policy=absent_part", "fp.register_policy('absent_part')"),
        ('features.names=["absent_part"]', "fp.register_feature('absent_part')"),
        ("mandate.base=absent_part", ""),
    ],
)
def test_an_unknown_name_is_refused_with_the_form_of_custom_parts(
    setting: str, registration: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text("[tournament]\npods = 2\n")
    assert run(["tournament", "small.toml", "--set", setting, "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert "file.py:Name or package.module:Name" in error
    assert registration in error


def test_names_of_a_package_in_configs(package: Path) -> None:
    names = {kind: f"{package.name}.{kind}:{name}" for kind, name in NAMES.items()}
    config = parse(
        {
            "features": {"names": [names["feature"], "return_5"]},
            "environment": {"reward": names["reward"], "cost_model": names["cost"]},
            "mandate": {"base": names["strategy"]},
            "agent": {"algorithm": names["algorithm"], "policy": names["policy"]},
        }
    )
    rules_of(config.environment)
    assert custom_cost(config.environment.cost_model).name == "fixed"
    assert policy_maker(names["policy"]).__name__ == "MyPolicy"  # type: ignore[attr-defined]
    assert algorithm_info(names["algorithm"]).config_class is type(config.agent)
    with pytest.raises(ConfigError, match="must be one of"):
        rules_of(EnvironmentConfig(reward="acme_other"))


def test_feature_of_a_package_is_computed(package: Path) -> None:
    from finrl_pod_app.setup.extension_checks import random_panel

    panel = random_panel()
    packaged, file = (
        compute(panel, (name,)) for name in (f"{package.name}.feature:my_feature", f"{package}/feature.py:my_feature")
    )
    np.testing.assert_array_equal(packaged, file)


@pytest.mark.slow
def test_strategy_of_a_package_is_used_as_one_of_a_file(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from finrl_pod_app.paper.sources import strategy_source

    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    name = f"{package.name}.strategy:MyStrategy"
    assert is_custom(name)
    assert not is_custom("equal_weight")
    assert strategy_hash(name) == load_strategy(name).strategy_hash  # type: ignore[attr-defined]
    assert base_strategy(name).lookback is not None  # type: ignore[attr-defined]
    results = []
    for target in (name, f"{package / 'strategy.py'}:MyStrategy"):
        assert run(["backtest", "--strategy", target, "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    first, second = results
    assert first["test"]["strategies"].popitem()[1] == second["test"]["strategies"].popitem()[1]
    config = parse_paper({"strategy": name, "symbols": ["AAA"]})
    assert strategy_source(config).current().detail == config.strategy
    assert run(["audit", "--strategy", name, "--probes", "2", "--json"]) in (0, 1)
    with pytest.raises(InputError, match="takes no seed"):
        load_strategy(name, 3)


def test_a_failure_in_a_package_is_one_sentence(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = package / "raising.py"
    file.write_text(COST.replace("return 0.001 * amount * prices", "return amount.missing"))
    arguments = [
        "backtest",
        "--strategy",
        "equal_weight",
        "--split",
        "test",
        "--set",
        f"cost_model={package.name}.raising:Fixed",
    ]
    assert run(arguments) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"finrl-pod: {package.name}.raising:Fixed failed: AttributeError: 'Tensor' object has no")
    assert told.endswith(f"({file}, line 5)")


def test_environment_and_source_of_a_package_are_opened(package: Path) -> None:
    from finrl_pod_app.environment_training.config import open_env

    name = f"{package.name}.environment:MyEnvironment"
    assert load_env(name, envs=2).envs == 2
    assert source_sha256(name) == source_sha256(f"{package / 'environment.py'}:MyEnvironment")
    assert open_env(name, envs=3).envs == 3
    with pytest.raises(ConfigError, match=r"package\.module:Class, got 'acme_other'"):
        open_env("acme_other", envs=1)
    source = open_source(f"{package.name}.source:Flat")
    assert source.fetch(["AAA"], "2024-01-01", "2024-12-31", "1d").symbols == ("AAA",)


@pytest.mark.parametrize("kind", ["{module}:Memory", "{file}:Memory", "{file}:pair"])
def test_broker_of_ones_own_is_opened_with_settings_and_clock(package: Path, kind: str) -> None:
    settings = BrokerSettings(
        kind=kind.format(file=package / "broker.py", module=f"{package.name}.broker"), url="https://broker.example"
    )
    assert parse_paper(
        {"strategy": "equal_weight", "symbols": ["AAA"], "broker": {"kind": settings.kind}}
    ).broker.kind == settings.kind  # fmt: skip
    clock = SystemClock()
    broker, feed = open_broker(settings, clock)
    assert (broker.name, feed.name) == ("memory", "memory")
    assert broker.settings is settings  # type: ignore[attr-defined]
    assert broker.clock_used is clock  # type: ignore[attr-defined]
    assert (broker is feed) == (not kind.endswith("pair"))


def test_unusable_brokers_are_refused(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = package / "broker.py"
    for name, message in (
        ("absent", "has no absent; it defines"),
        ("broken", r"could not be created: OSError: no line"),
        ("Deaf", r"has no latest: see DataFeed in finrl_pod\.paper\.domain\.port"),
    ):
        with pytest.raises(InputError, match=message):
            open_broker(BrokerSettings(kind=f"{file}:{name}"), SystemClock())
    with pytest.raises(ConfigError, match=r"broker\.kind is out of its range, got 'robin': it must be one of"):
        parse_paper({"strategy": "equal_weight", "symbols": ["AAA"], "broker": {"kind": "robin"}})
    file.write_text("class Half:\n    def submit(self, request): ...\n    def cancel(self, order_id): ...\n")
    assert run(["check", f"{file}:Half"]) == 1
    assert "it has no account" in capsys.readouterr().out


def test_broker_file_is_relative_to_the_config_and_kept_as_an_absolute_path(tmp_path: Path) -> None:
    from finrl_pod.paper.settings import load, pack, unpack

    (tmp_path / "paper.toml").write_text(
        'strategy = "equal_weight"\nsymbols = ["AAA"]\n[broker]\nkind = "my_broker.py:Memory"\n'
    )
    config: PaperConfig = load(tmp_path / "paper.toml")
    assert config.broker.kind == f"{tmp_path}/my_broker.py:Memory"
    assert unpack(pack(config)).broker.kind == config.broker.kind


def test_a_name_in_another_case_is_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "small.toml"
    config.write_text("[tournament]\npods = 2\n")
    assert run(["tournament", str(config), "--set", "agent.algorithm=PPO", "--dry-run"]) == 2
    assert capsys.readouterr().err.endswith("there is no algorithm 'PPO'; did you mean ppo?\n")
