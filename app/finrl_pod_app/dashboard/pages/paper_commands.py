"""Actions on the paper page: Halt needs one confirmation, Resume and Flatten the password and a typed word."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

import streamlit as st

from finrl_pod.errors import count_text
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.actions.access import command_guard, default_user_name, visitor_address
from finrl_pod_app.dashboard.pages.columns import STRATEGY_PARTS
from finrl_pod_app.dashboard.pages.widgets import error_messages, show_table
from finrl_pod_app.dashboard.passwords import Password
from finrl_pod_app.dashboard.queries.paper_journal import Journal, load
from finrl_pod_app.dashboard.queries.paper_performance import BacktestDifference
from finrl_pod_app.dashboard.queries.paper_state import is_simulated

MAX_NAME_LENGTH = 64
_PENDING_COMMAND = "paper_command"  # journal and id of the last command of this visitor, until it was answered
_EXPLANATIONS = {
    "resume": "The daemon trades again from its next decision, within the risk limits.",
    "flatten": "All positions of the strategy are sold at the market. Nothing is bought until trading is resumed.",
}


def show_command_buttons(path: Path) -> None:
    """Draw the three buttons."""
    with st.container(horizontal=True, key="commands"):
        help_text = "Stop sending orders and cancel open ones."
        if st.button("Halt", type="primary", icon=":material/front_hand:", help=help_text, key="danger-halt"):
            _halt_dialog(path)
        if st.button("Resume…", icon=":material/play_arrow:", help="Trade again. Requires the password."):
            _resume_dialog(path)
        help_text = "Sell all positions. Requires the password."
        if st.button("Flatten…", type="primary", icon=":material/sell:", help=help_text, key="danger-flatten"):
            _flatten_dialog(path)


def show_command_outcome(journal: Journal) -> None:
    """Show this visitor the outcome of their last command once."""
    path, number = st.session_state.get(_PENDING_COMMAND, (journal.path, None))
    if path != journal.path:  # of another account
        return
    results = journal.commands[(journal.commands.id == number) & journal.commands.outcome.notna()]
    if len(results):
        row = results.iloc[0]
        text = theme.escape_markdown(f"{row['name']}: {row.outcome}")
        st.toast(text, icon=":material/task_alt:", duration="long")
        del st.session_state[_PENDING_COMMAND]


@st.dialog("Halt trading?", icon=":material/front_hand:")
def _halt_dialog(path: Path) -> None:
    _show_account(path)
    st.markdown("No more orders are sent, and open orders are cancelled. Positions are kept.")
    user = default_user_name() or st.text_input(
        "Your name", max_chars=MAX_NAME_LENGTH, help="Recorded with the command."
    )
    if st.button("Halt now", type="primary", key="halt-now"):
        _submit(path, "halt", user.strip())


@st.dialog("Resume trading?", icon=":material/play_arrow:")
def _resume_dialog(path: Path) -> None:
    _password_form(path, "resume")


@st.dialog("Sell all positions?", icon=":material/sell:")
def _flatten_dialog(path: Path) -> None:
    _password_form(path, "flatten")


def _password_form(path: Path, name: str) -> None:
    word = name.upper()
    _show_account(path)
    st.markdown(_EXPLANATIONS[name])
    if not Password().is_set:
        st.error("No password is set. Set one on the server first:", icon=":material/lock:")
        st.code("finrl-pod dashboard set-password", language="bash", wrap_lines=True)
        return
    with st.form(f"{name}-form", border=False):
        user = st.text_input(
            "Your name", default_user_name(), max_chars=MAX_NAME_LENGTH, help="Recorded with the command."
        )
        confirmation = st.text_input(f"Type {word} to confirm")
        text = st.text_input("Password", type="password", autocomplete="current-password")
        is_submitted = st.form_submit_button(word.capitalize(), type="primary")
    if not is_submitted:
        return
    if not user.strip():
        st.error("Enter your name: it is recorded with the command.")
    elif confirmation.strip() != word:
        st.error(f"Type {word} in the second field to confirm.")
    else:
        with error_messages("lock"):
            command_guard().check(text, visitor_address())
            _submit(path, name, user.strip())


def _show_account(path: Path) -> None:
    """Draw the account that a dialog acts on: there may be several."""
    journal = load(path)
    st.caption(theme.escape_markdown(f"Account {journal.name} ({path})"))


def _submit(path: Path, name: str, user: str) -> None:
    from finrl_pod.paper.journal.commands import CommandName, submit_command
    from finrl_pod.paper.journal.store import Store

    with error_messages():
        with contextlib.closing(Store.open(path)) as store:
            number = submit_command(store, CommandName(name), user=user, address=visitor_address())
        st.session_state[_PENDING_COMMAND] = (path, number)
        st.rerun()


CENT = 0.01
MAX_DIFFERENCES = 10


def show_replay(journal: Journal, difference: BacktestDifference) -> None:
    """Draw the last replay of the backtest over the sessions of the account, and the command for a new one."""
    escape = theme.escape_markdown
    if difference.is_available:
        time = difference.made[:16].replace("T", " ")
        match = "Orders, fills and equity match the backtest to the cent." if not difference.differences else ""
        note = f" It does not cover the last {count_text(difference.behind, 'session')}." if difference.behind else ""
        st.caption(escape(f"Replayed with {difference.strategy} on {time} UTC.{note} {match}"))
        if causes := {cause: value for cause, value in difference.causes.items() if abs(value) >= CENT}:
            texts = [f"{cause.replace('_', ' ')} {theme.signed_money(value, 2)}" for cause, value in causes.items()]
            st.caption(escape(f"The difference by cause: {', '.join(texts)}."))
        if len(difference.parts) > 1:
            alt = "Each strategy of the account with its equity and its backtest."
            show_table(difference.parts, STRATEGY_PARTS, "paper-strategies", alt=alt)
        if difference.differences:
            with st.expander(f"{count_text(len(difference.differences), 'difference')} from the backtest"):
                for sentence in difference.differences[:MAX_DIFFERENCES]:
                    st.markdown(f"- {escape(sentence)}")
                if (omitted_count := len(difference.differences) - MAX_DIFFERENCES) > 0:
                    st.markdown(f"and {omitted_count:,} more (`finrl-pod paper track --json`)")
    with st.expander("Replay the backtest", expanded=not difference.is_available):
        st.markdown("This command runs the backtest over the same sessions with the orders that the daemon would send:")
        panel = " --panel sample" if is_simulated(journal) else ""
        command = f"finrl-pod paper track --journal {shlex.quote(str(journal.path))}{panel}"
        st.code(command, language=None, wrap_lines=True)
