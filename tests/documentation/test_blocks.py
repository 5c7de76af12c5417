"""Every code block and command of README and docs runs, in one folder, page after page.

Markets are small: a config that `finrl-pod init` writes is checked, then replaced by one that runs within seconds.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import sys
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import typer
from finrl_pod_app.cli.main import app
from finrl_pod_app.cli.main import run as command
from finrl_pod_app.setup.presets import config_text

from finrl_pod.errors import FinrlPodError
from finrl_pod.paper.settings import load as load_paper_config
from finrl_pod.settings.run import load as load_config
from tests.app.small_run import isolated_folders, small_config
from tests.command_parsing import parse
from tests.documentation.blocks import PAGES, REASONS, ROOT, RUNNABLE, Block, blocks_of, comments_of
from tests.envs.simulators.tasks import IsaacGymTask, Points

pytestmark = pytest.mark.slow

BLOCKS = {str(page.relative_to(ROOT)): blocks_of(page) for page in PAGES}
SHOWN = ("text", "json")  # formulas, answers and files for other programs
SHELL = ("sh", "bash", "console")
MOST_SKIPPED = 120  # blocks and lines that are not run; fewer is better
PROGRAM = re.compile(r"^(?:\.venv/bin/)?finrl-pod ")
FILE_NAME = re.compile(r"# ([\w/]+\.(?:py|toml))\b")
TOURNAMENT = "finrl-pod tournament mine.toml --out runs/mine"  # runs first: most pages use its folder
REPLAY = """strategy = "equal_weight"
symbols = ["AAPL", "JPM", "KO", "PG", "XOM"]
broker.kind = "simulated"
schedule.mode = "close"
"""
NEGATIVE = 1  # exit code of commands whose result may be negative: not promoted, audit failed, doctor found something


class Reader:
    """Runs blocks as a reader would, in one folder."""

    def __init__(self) -> None:
        self.ran: set[str] = set()

    def run(self, block: Block, names: dict[str, Any]) -> Iterator[str]:
        """Run a block and yield what failed. names: the variables of the page's Python blocks."""
        if block.language == "python":
            code = compile(block.runnable_text, f"{block.page}:{block.line}", "exec", dont_inherit=True)
            exec(code, names)
        elif block.language == "toml":
            yield from self.configure(block)
        else:
            for line in block.commands():
                if not block.reason(line):
                    yield from self.call(line)

    def call(self, line: str) -> Iterator[str]:
        """Run one line of a shell; a line that ran before is not run again."""
        arguments = shlex.split(line, comments=True)
        text = shlex.join(arguments)
        if text in self.ran:
            return
        self.ran.add(text)
        if arguments[0] == "cp":
            shutil.copy(*arguments[1:])
            return
        if not PROGRAM.match(line):
            yield f"{line!r} is no command of finrl-pod: mark it"
            return
        if arguments[1] == "init":
            next(Path(argument) for argument in arguments if argument.endswith(".toml")).unlink(missing_ok=True)
        if "--out" in arguments and "--resume" not in arguments:
            shutil.rmtree(arguments[arguments.index("--out") + 1], ignore_errors=True)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = command(arguments[1:])
        if code not in (0, NEGATIVE) or "Traceback" in err.getvalue():
            yield f"{line!r}: exit {code}: {err.getvalue().strip().splitlines()[-1:]}"
        if arguments[1] == "init" and code == 0:
            shrink(next(Path(argument) for argument in arguments[2:] if argument.endswith(".toml")))

    def configure(self, block: Block) -> Iterator[str]:
        """Check a config, or a part of one, of a run or of the daemon."""
        text = block.runnable_text
        tomllib.loads(text)
        part, errors = Path("part.toml"), []
        paper = 'symbols = ["AAPL"]\n' if "symbols" not in text else ""
        paper += (
            'strategy = "equal_weight"\n' if not re.search(r"^(strategy|run|champion|\[\[strat)", text, re.M) else ""
        )
        for load, before in ((load_config, ""), (load_paper_config, paper)):
            part.write_text(before + text)
            try:
                load(part)
                return
            except FinrlPodError as error:
                errors.append(str(error))
        yield f"{block.page}:{block.line}: {' | '.join(errors)}"


def write(name: str, text: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)


def shrink(path: Path) -> None:
    """Replace the config of a market by a small one of the same algorithm."""
    config = load_config(path)
    if config.environment.kind == "custom":
        return
    path.write_text(config_text(small_config(generations=2, pods=2, champion=1)))


@pytest.fixture(autouse=True)
def isaac_gym(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for NVIDIA's package, which needs an old Python and a GPU."""
    package = ModuleType("isaacgymenvs")

    def make(*, seed: int, task: str, num_envs: int, sim_device: str, rl_device: str) -> IsaacGymTask:
        return IsaacGymTask(Points(num_envs))

    monkeypatch.setattr(package, "make", make, raising=False)
    monkeypatch.setitem(sys.modules, "isaacgymenvs", package)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A folder with prices and a strategy of the reader's own; the working folder of all blocks."""
    folder = tmp_path_factory.mktemp("reader")
    threads = torch.get_num_threads()
    with isolated_folders(folder), contextlib.chdir(folder):
        write_prices(Path("prices.csv"), "B", 1050)
        write_prices(Path("minutes.csv"), "15min", 26)
        page = (ROOT / "docs/backtests.md").read_text()
        (strategy,) = re.findall(r"^```python\n(# my/ideas\.py\n.*?)^```$", page, re.DOTALL | re.MULTILINE)
        write("my/ideas.py", strategy)
        write("replay.toml", REPLAY)
        reader = Reader()
        for line in ("finrl-pod init --preset quick mine.toml", TOURNAMENT):
            assert not list(reader.call(line))
        yield reader
    torch.set_num_threads(threads)


def write_prices(path: Path, frequency: str, bars: int) -> None:
    """Random walks of three tickers with every column that `data import` takes."""
    rng = np.random.default_rng(3)
    if frequency == "B":
        times = pd.bdate_range("2018-01-02", periods=bars)
    else:
        days = pd.bdate_range("2021-01-04", periods=48)
        times = pd.DatetimeIndex(
            [day + pd.Timedelta(hours=14, minutes=30 + 15 * i) for day in days for i in range(bars)], tz="UTC"
        )
    frames = []
    for symbol in ("AAPL", "KO", "XOM"):
        close = 50 * np.exp(rng.normal(3e-4, 0.01, len(times)).cumsum())
        opened = np.r_[close[0], close[:-1]]
        frame = {"time": times, "symbol": symbol, "open": opened, "high": np.maximum(opened, close) * 1.002}
        frame |= {"low": np.minimum(opened, close) * 0.998, "close": close}
        frames.append(pd.DataFrame(frame | {"volume": rng.integers(10_000, 90_000, len(times))}))
    pd.concat(frames).sort_values(["time", "symbol"]).to_csv(path, index=False)


@pytest.mark.parametrize("page", [page for page, blocks in BLOCKS.items() if blocks])
def test_blocks_run(page: str, reader: Reader) -> None:
    names: dict[str, Any] = {"__name__": "example"}
    for block in BLOCKS[page]:
        if named := FILE_NAME.match(block.text):
            write(named[1], block.runnable_text)
    failed: list[str] = []
    for block in BLOCKS[page]:
        if block.reason() or block.language not in RUNNABLE:
            continue
        try:
            with warnings.catch_warnings():  # of other libraries
                warnings.simplefilter("ignore")
                failed += reader.run(block, names)
        except Exception as error:  # noqa: BLE001  whatever a page raises, the other blocks run
            failed.append(f"{page}:{block.line}: {type(error).__name__}: {error}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("page", [page for page, blocks in BLOCKS.items() if blocks])
def test_commands_are_valid(page: str) -> None:
    """Also those that are not run."""
    program = typer.main.get_command(app)
    for block in BLOCKS[page]:
        for line in block.commands() if block.language in SHELL else []:
            if PROGRAM.match(line):
                arguments = shlex.split(PROGRAM.sub("", line), comments=True)
                assert parse(program, arguments) in arguments, line


def test_commands_of_a_checkout_are_marked() -> None:
    """Readers who installed a wheel have neither make nor benchmarks; tutorials are for them, too."""
    for page, blocks in BLOCKS.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        for block in blocks:
            commands = [line for line in block.commands() if line.startswith(("make ", "python -m benchmarks "))]
            before = "\n".join(text.splitlines()[: block.line + block.text.count("\n")])
            assert not commands or "checkout" in before, f"{page}:{block.line}"
            assert not commands or not page.startswith("docs/tutorials/"), f"{page}:{block.line}"


def test_invalid_commands_are_refused() -> None:
    for arguments in (["backtest", "--no-such-option"], ["no-such-command"]):
        with pytest.raises(typer.TyperException):
            parse(typer.main.get_command(app), arguments)


def test_reasons_are_known() -> None:
    """What is not run is counted; a covering test must exist, and every other reason must be on the list."""
    reasons = Counter(
        block.reason(line)
        for blocks in BLOCKS.values()
        for block in blocks
        for line in (block.commands() if block.language in SHELL and not block.reason() else [""])
    )
    del reasons[""]
    assert sum(reasons.values()) <= MOST_SKIPPED, reasons
    unknown = {r for r in reasons if r not in REASONS and not (r.startswith("tests/") and (ROOT / r).is_file())}
    assert not unknown


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_commands_that_are_not_run_exist(page: str) -> None:
    """Targets of make, files of Python and commands of finrl-pod, in blocks and between backticks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:`|^ *(?:\$ )?)make ([a-z-]+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    for file in re.findall(r"python ((?:\w+/)+\w+\.py)", text):
        assert (ROOT / file).is_file(), file
    program = typer.main.get_command(app)
    for words in re.findall(r"`finrl-pod ([a-z][^`]*)`", text):
        found: Any = program
        for word in words.split():
            if not hasattr(found, "commands") or word not in found.commands:
                break
            found = found.commands[word]
        assert found is not program, words
        options = {name for parameter in found.params for name in parameter.opts} | {"--help"}
        assert not set(re.findall(r"(?<!\S)--[a-z-]+", words)) - options, words


def test_comments_belong_to_blocks() -> None:
    """A comment with a blank line between it and its block, or with a misspelling, would do nothing."""
    for page in PAGES:
        blocks = BLOCKS[str(page.relative_to(ROOT))]
        used = sum(len(block.skipped) + len(block.replacements) for block in blocks)
        assert len(comments_of(page)) == used, page.name


def test_languages_are_known() -> None:
    """Blocks have a language; those of other languages would be skipped silently."""
    wrong = [
        f"{block.page}:{block.line}"
        for blocks in BLOCKS.values()
        for block in blocks
        if block.language not in (*RUNNABLE, *SHOWN)
    ]
    assert not wrong
