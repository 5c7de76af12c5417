"""Ready-made configs, and the commented TOML text that `finrl-pod init` writes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from finrl_pod.errors import ConfigError
from finrl_pod.settings.constraints import describe_settings
from finrl_pod.settings.run import EnvironmentConfig, PPOConfig, RunConfig, TournamentConfig
from finrl_pod.settings.toml import closest_key, record_lines

PRESETS: Mapping[str, RunConfig] = {
    "laptop": RunConfig(),
    "gpu": RunConfig(
        environment=EnvironmentConfig(envs=1024),
        agent=PPOConfig(hidden=(64, 64)),
        tournament=TournamentConfig(
            pods=32, generations=12, samples_per_generation=1_000_000, leaderboard=64, champion=8
        ),
    ),
    "quick": RunConfig(
        tournament=TournamentConfig(pods=4, generations=2, samples_per_generation=40_000, leaderboard=8, champion=2),
    ),
}

PURPOSES: Mapping[str, str] = {
    "laptop": "minutes on two CPU cores; what `finrl-pod demo` runs",
    "gpu": "a larger population for one CUDA device",
    "quick": "every stage within a minute, to check that it works; too short to learn much",
}


def preset(name: str) -> RunConfig:
    """A preset by name. Raises ConfigError for an unknown one."""
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}; {closest_key(name, PRESETS)}")
    return PRESETS[name]


def preset_text(name: str) -> str:
    """Commented TOML of a preset; `finrl_pod.settings.run.parse` reads it back to an equal config."""
    config = preset(name)
    head = f"# finrl_pod, preset {name}: {PURPOSES[name]}.\n# finrl-pod tournament THIS_FILE --out runs/mine\n\n"
    return head + config_text(config)


def config_text(config: RunConfig) -> str:
    """Commented TOML of any config: plain settings first, then one table per section and per cohort."""
    declared = describe_settings(RunConfig)
    blocks = ["\n".join(record_lines(config))]
    for name, item in declared.items():
        values = getattr(config, name)
        tables = [(f"[[{name}]]", one) for one in values] if name == "cohorts" else [(f"[{name}]", values)]
        for header, record in tables:
            if dataclasses.is_dataclass(record):
                blocks.append("\n".join([f"# {item.comment}", header, *record_lines(record)]))
    return "\n\n".join(blocks) + "\n"


def write_preset(name: str, path: Path) -> None:
    """Write a preset to a new file. Raises ConfigError when the file exists already or cannot be written."""
    text = preset_text(name)
    try:
        # Mode "x" rather than a check first: a file created in between is not overwritten.
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise ConfigError(f"{path} already exists; choose another name or remove it") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
