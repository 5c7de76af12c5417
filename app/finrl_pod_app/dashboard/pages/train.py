"""Train page: a form that writes a config and starts a training; the page of the run then shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import date
from typing import Any

import streamlit as st

from finrl_pod.data.features import names as feature_names
from finrl_pod.errors import FinrlPodError, count_text
from finrl_pod.settings.algorithm_registry import ALGORITHMS
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import EnvironmentConfig, RunConfig, TournamentConfig, describe_setting, parse
from finrl_pod.settings.toml import parse_toml
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.actions import jobs
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.widgets import error_messages, page_of
from finrl_pod_app.dashboard.settings import Settings
from finrl_pod_app.report.columns import display_name
from finrl_pod_app.setup.presets import PRESETS, PURPOSES, config_text

BASES = ("equal_weight", "inverse_volatility", "minimum_variance", "hierarchical_risk_parity", "none")
DECIDE_EVERY: tuple[int | str, ...] = (1, 5, 21, "week", "month")
MAX_NUMBER = 2**53 - 1  # the largest integer of a browser
MIN_DATE = date(1900, 1, 1)
MANDATE_NUMBERS = ("tilt", "trade_speed", "max_weight", "max_turnover", "volatility_target")


def render(settings: Settings) -> None:
    """Draw the page: the form, the resulting TOML, and the start button."""
    st.title("Train")
    form, preview = st.columns([3, 2], gap="large")
    with form:
        name = st.text_input("Run name", "run", max_chars=40, help="The time is appended.")
        preset = st.selectbox(
            "Preset", list(PRESETS), format_func=lambda name: f"{name}: {PURPOSES[name]}".replace("`", "")
        )
        choices = _choices(preset)
        toml = st.text_area(
            "Further settings (TOML)",
            placeholder="[environment]\nhalf_spread_bps = 2.0",
            help="Any setting of the config file. Overrides the form.",
        )
    with preview:
        try:
            config = build_config(choices, toml)
        except FinrlPodError as error:
            st.error(theme.escape_markdown(error), icon=":material/error:")
            return
        if st.button("Start training", type="primary", icon=":material/play_arrow:", width="stretch"):
            with error_messages():
                run = jobs.start(config, settings.runs, name)
                cached.found_runs.clear()
                st.switch_page(page_of("run"), query_params={"name": run.name})
        text = config_text(config)
        st.download_button("Download TOML", text, f"{name}.toml", "application/toml", width="stretch")
        st.caption(f"Run it from a terminal: `finrl-pod tournament {name}.toml --out runs/{name}`")
        with st.expander("Config (TOML)"):
            st.code(text, language=None, wrap_lines=True)  # colours of the highlighted language lack contrast


def _choices(preset: str) -> dict[str, Any]:
    """Draw the fields, initialised from a preset on the chosen panel, and return their nested choices."""

    def key(field: str) -> str:
        return f"{preset}: {field}"  # a different preset resets the fields

    st.header("Data", divider="gray")
    panels = [manifest for manifest in cached.catalogue() if not manifest.fault]
    panel = st.selectbox("Prices", panels, format_func=lambda manifest: manifest.name, key=key("data"))
    tickers = count_text(len(panel.symbols), "ticker")
    st.caption(f"{tickers}, {count_text(panel.bars, 'bar')} from {panel.start} to {panel.end}.")
    symbols = st.multiselect("Tickers", panel.symbols, placeholder="all", key=key(f"symbols of {panel.name}"))
    base = cached.preset_on_panel(preset, panel.name, panel.sha256)
    choices: dict[str, Any] = dataclasses.asdict(base)
    choices["data"] = {"name": panel.name, "symbols": symbols}
    choices["splits"] = {"embargo": base.splits.embargo, **_choose_splits(base.splits, key(panel.name))}
    features = st.multiselect(
        "Features",
        feature_names(),
        default=list(base.features.names),
        key=key(f"features on {panel.name}"),
        help=describe_setting("features.names").comment,
    )
    choices["features"] = {"names": features}
    st.header("Agents", divider="gray")
    algorithm = st.selectbox(
        "Algorithm",
        list(ALGORITHMS),
        index=list(ALGORITHMS).index(base.agent.algorithm),
        format_func=lambda name: f"{name}: {ALGORITHMS[name].summary}",
        key=key("algorithm"),
    )
    if algorithm != base.agent.algorithm:
        choices["agent"] = {"algorithm": algorithm}
        if ALGORITHMS[algorithm].actions == "discrete":
            choices["environment"]["kind"] = "discrete"
    left, right = st.columns(2)
    tournament: TournamentConfig = base.tournament

    def number(column: Any, path: str, value: float, step: float | None = None, form: str | None = None) -> Any:
        return column.number_input(value=value, step=step, format=form, key=key(path), **number_field(path))

    pods = number(left, "tournament.pods", tournament.pods)
    generations = number(right, "tournament.generations", tournament.generations)
    samples = number(left, "tournament.samples_per_generation", tournament.samples_per_generation, 10_000)
    seed = number(right, "seed", base.seed)
    choices["seed"] = seed
    choices["tournament"] |= {"pods": pods, "generations": generations, "samples_per_generation": samples}
    choices["tournament"] |= {"champion": min(tournament.champion, pods)}
    if pods == 1:  # a single agent continues through all generations, as in `finrl-pod train`
        choices["tournament"] |= {"exploit_fraction": 0.0, "reinit_fraction": 0.0}
    st.caption(f"{count_text(pods * generations * samples, 'sample')} in total.")
    st.header("Market", divider="gray")
    rules: EnvironmentConfig = base.environment
    left, right = st.columns(2)
    cost = left.number_input(
        value=rules.cost_bps, step=1.0, key=key(f"cost on {panel.name}"), **number_field("environment.cost_bps")
    )
    cash = number(right, "environment.cash", rules.cash, 100_000.0, "%.0f")
    choices["environment"] |= {"cost_bps": cost, "cash": cash}
    st.header("Mandate", divider="gray", help="Bounds on what every agent may hold and trade.")
    left, right = st.columns(2)
    bounds = choices["mandate"]
    for column, name, options in ((left, "base", BASES), (right, "decide_every", DECIDE_EVERY)):
        choices["mandate"][name] = column.selectbox(
            setting_label(f"mandate.{name}"),
            list(dict.fromkeys((bounds[name], *options))),
            format_func=lambda value: display_name(str(value)),
            help=describe_setting(f"mandate.{name}").comment,
            key=key(f"mandate.{name}"),
        )
    if bounds["base"] != "none":
        for i, name in enumerate(MANDATE_NUMBERS):
            path = f"mandate.{name}"
            column = (left, right)[i % 2]
            choices["mandate"][name] = number(column, path, bounds[name], 0.05, "%.2f")
    return choices


def _choose_splits(default_splits: Any, key: str) -> dict[str, list[str]]:
    """Draw the first and last day of each split, side by side."""
    splits = {}
    for column, name in zip(st.columns(3), ("train", "validation", "test"), strict=True):
        first, last = (date.fromisoformat(day) for day in getattr(default_splits, name))
        help_text = describe_setting(f"splits.{name}").comment
        low = column.date_input(f"{name.capitalize()} from", first, MIN_DATE, key=f"{key} {name} from", help=help_text)
        high = column.date_input("To", last, MIN_DATE, key=f"{key} {name} to")
        splits[name] = [low.isoformat(), high.isoformat()]
    return splits


def setting_label(path: str) -> str:
    """The label of a setting by its dotted name: "environment.cost_bps" -> "Cost (bps)"."""
    return path.rpartition(".")[2].replace("_bps", " (bps)").replace("_", " ").capitalize()


def number_field(path: str) -> dict[str, Any]:
    """Label, help and bounds of the input field of a number, as keyword arguments of `st.number_input`.

    All numbers are int or float as declared. Raises KeyError for an unknown setting.
    """
    declaration = describe_setting(path)
    number = int if declaration.type == "int" else float
    low, high = (declaration.constraint.low, declaration.constraint.high) if declaration.constraint else (None, None)
    return {
        "label": setting_label(path),
        "min_value": None if low is None else number(low),
        "max_value": None if high is None else number(min(high, MAX_NUMBER)),
        "help": declaration.comment,
    }


def build_config(choices: Mapping[str, Any], toml: str = "") -> RunConfig:
    """The config of nested choices, such as {"agent": {"algorithm": "sac"}}, overridden by settings in TOML.

    Settings in neither keep their defaults. Raises ConfigError for an unknown setting or a value out of its range.
    """
    overrides = parse_toml(toml, "the further settings")
    config = parse(merge(dict(choices), overrides), "the form")
    for section in ("environment", "mandate", "agent", "tournament", "gate"):
        check_settings(f"the form: {section}.", getattr(config, section))
    return config


def merge(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables merged recursively; values other than tables are replaced. Changes neither argument."""
    result = dict(values)
    for key, value in overrides.items():
        current = result.get(key)
        are_tables = isinstance(current, Mapping) and isinstance(value, Mapping)
        result[key] = merge(current, value) if are_tables else value  # type: ignore[arg-type]
    return result
