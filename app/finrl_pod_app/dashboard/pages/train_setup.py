"""The form of a training: what is chosen becomes the TOML that the command line reads."""

from __future__ import annotations

import dataclasses
from datetime import date
from typing import Any

import streamlit as st

from finrl_pod.errors import FinrlPodError
from finrl_pod.settings.algorithm_registry import ALGORITHMS
from finrl_pod.settings.run import EnvironmentConfig, FeatureConfig, RunConfig, TournamentConfig, describe_setting
from finrl_pod_app.dashboard import jobs, theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.settings import Settings
from finrl_pod_app.dashboard.training_form import config_of, proposed_splits
from finrl_pod_app.services.presets import PRESETS, PURPOSES, config_text

EARLIEST = date(1900, 1, 1)


def set_up(settings: Settings) -> None:
    """Draw the form, the TOML, and the button that starts."""
    form, shown = st.columns([3, 2], gap="large")
    with form:
        name = st.text_input("Name of the run", "mine", max_chars=40, help="The time is added to it.")
        preset = st.selectbox(
            "Begin from", list(PRESETS), format_func=lambda one: f"{one}: {PURPOSES[one]}".replace("`", "")
        )
        choices = _choices(PRESETS[preset], preset)
        more = st.text_area(
            "Further settings, as TOML",
            placeholder="[environment]\nhalf_spread_bps = 2.0",
            help="Anything that a config file may hold; it wins over the form.",
        )
    with shown:
        try:
            config = config_of(choices, more)
        except FinrlPodError as error:
            st.error(theme.plain(error), icon=":material/error:")
            return
        if st.button("Start the training", type="primary", icon=":material/play_arrow:", width="stretch"):
            try:
                run = jobs.start(config, settings.runs, name)
            except FinrlPodError as error:
                st.error(theme.plain(error), icon=":material/error:")
                return
            cached.found_runs.clear()
            st.session_state["train: started"] = True
            st.query_params["run"] = run.name
            st.rerun()
        text = config_text(config)
        st.download_button("Download the TOML", text, f"{name}.toml", "application/toml", width="stretch")
        st.caption(f"The same from a terminal: `finrl-pod tournament {name}.toml --out runs/{name}`")
        st.code(text, language="toml", height=560, wrap_lines=True)


def _choices(base: RunConfig, preset: str) -> dict[str, Any]:
    """The nested choices of the form; its fields begin at those of a preset."""

    def key(field: str) -> str:
        return f"{preset}: {field}"  # another preset brings its own values

    chosen: dict[str, Any] = dataclasses.asdict(base)
    st.subheader("Data", divider="gray")
    panels = [one for one in cached.catalogue() if not one.fault]
    panel = st.selectbox("Prices", panels, format_func=lambda one: one.name, key=key("data"))
    st.caption(f"{len(panel.symbols)} tickers, {panel.bars:,} bars from {panel.start} to {panel.end}.")
    symbols = st.multiselect("Tickers", panel.symbols, placeholder="all", key=key(f"symbols of {panel.name}"))
    chosen["data"] = {"name": panel.name, "symbols": symbols}
    splits = proposed_splits(date.fromisoformat(panel.start[:10]), date.fromisoformat(panel.end[:10]))
    chosen["splits"] = {"embargo": base.splits.embargo, **_splits(splits, key(panel.name))}
    available = cached.feature_names()
    features = st.multiselect(
        "Features",
        available,
        default=list(FeatureConfig().names),
        key=key("features"),
        help=_help("features.names"),
    )
    chosen["features"] = {"names": features}
    st.subheader("Agents", divider="gray")
    algorithm = st.selectbox(
        "Algorithm",
        list(ALGORITHMS),
        index=list(ALGORITHMS).index(base.agent.algorithm),
        format_func=lambda one: f"{one}: {ALGORITHMS[one].summary}",
        key=key("algorithm"),
    )
    if algorithm != base.agent.algorithm:
        chosen["agent"] = {"algorithm": algorithm}
        if ALGORITHMS[algorithm].actions == "discrete":
            chosen["environment"]["kind"] = "discrete"
    left, right = st.columns(2)
    tournament: TournamentConfig = base.tournament
    pods = left.number_input("Pods", 1, 4096, tournament.pods, key=key("pods"), help=_help("tournament.pods"))
    generations = right.number_input(
        "Generations",
        1,
        1000,
        tournament.generations,
        key=key("generations"),
        help=_help("tournament.generations"),
    )
    samples = left.number_input(
        "Samples of a pod and generation", 1_000, 1_000_000_000, tournament.samples_per_generation, 10_000,
        key=key("samples"),
        help=_help("tournament.samples_per_generation"),
    )  # fmt: skip
    seed = right.number_input("Seed", 0, 2**31 - 1, base.seed, key=key("seed"), help=_help("seed"))
    chosen["seed"] = seed
    chosen["tournament"] |= {"pods": pods, "generations": generations, "samples_per_generation": samples}
    chosen["tournament"] |= {"champion": min(tournament.champion, pods)}
    if pods == 1:  # one agent that goes on through all generations, as `finrl-pod train` has it
        chosen["tournament"] |= {"exploit_fraction": 0.0, "reinit_fraction": 0.0}
    st.caption(f"In all {pods * generations * samples:,} samples.")
    st.subheader("Market", divider="gray")
    rules: EnvironmentConfig = base.environment
    left, right = st.columns(2)
    cost = left.number_input(
        "Cost of a trade, basis points", 0.0, 1_000.0, rules.cost_bps, 1.0, key=key("cost"),
        help=_help("environment.cost_bps"),
    )  # fmt: skip
    cash = right.number_input(
        "Cash at the start, $", 1_000.0, 1e12, rules.cash, 100_000.0, format="%.0f", key=key("cash")
    )
    chosen["environment"] |= {"cost_bps": cost, "cash": cash}
    return chosen


def _splits(proposed: Any, key: str) -> dict[str, list[str]]:
    """First and last day of each split, side by side."""
    found = {}
    for place, name in zip(st.columns(3), ("train", "validation", "test"), strict=True):
        first, last = (date.fromisoformat(day) for day in getattr(proposed, name))
        help_text = _help(f"splits.{name}")
        low = place.date_input(f"{name.capitalize()} from", first, EARLIEST, key=f"{key} {name} from", help=help_text)
        high = place.date_input("To", last, EARLIEST, key=f"{key} {name} to")
        found[name] = [low.isoformat(), high.isoformat()]
    return found


def _help(name: str) -> str:
    return describe_setting(name).comment
