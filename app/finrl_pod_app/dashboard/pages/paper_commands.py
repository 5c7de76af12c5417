"""Halt, Resume and Flatten on the paper page: one confirmation for Halt, password and typed word for the others."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from finrl_pod.errors import FinrlPodError
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.actions.access import default_user_name, password_guard, visitor_address
from finrl_pod_app.dashboard.passwords import Password
from finrl_pod_app.dashboard.queries.paper_journal import Journal, load

MAX_NAME_LENGTH = 64
_PENDING_COMMAND = "paper_command"  # journal and id of this visitor's last command, until it was answered
_EXPLANATIONS = {
    "resume": "The daemon trades again from its next decision, within the risk limits.",
    "flatten": "All positions of the strategy are sold at the market. Nothing is bought until trading is resumed.",
}


def show_command_buttons(path: Path) -> None:
    """Draw the three buttons."""
    with st.container(horizontal=True, key="commands"):
        if st.button(
            "Halt",
            type="primary",
            icon=":material/front_hand:",
            help="Stop sending orders and cancel open ones.",
            key="danger-halt",
        ):
            _halt_dialog(path)
        if st.button("Resume…", icon=":material/play_arrow:", help="Trade again. Requires the password."):
            _resume_dialog(path)
        if st.button(
            "Flatten…",
            type="primary",
            icon=":material/sell:",
            help="Sell all positions. Requires the password.",
            key="danger-flatten",
        ):
            _flatten_dialog(path)


def show_command_outcome(journal: Journal) -> None:
    """Show this visitor the outcome of their last command once."""
    path, number = st.session_state.get(_PENDING_COMMAND, (journal.path, None))
    if path != journal.path:  # of another account
        return
    answered = journal.commands[(journal.commands.id == number) & journal.commands.outcome.notna()]
    if len(answered):
        row = answered.iloc[0]
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
        typed = st.text_input(f"Type {word} to confirm")
        text = st.text_input("Password", type="password", autocomplete="current-password")
        submitted = st.form_submit_button(word.capitalize(), type="primary")
    if not submitted:
        return
    if not user.strip():
        st.error("Enter your name: it is recorded with the command.")
    elif typed.strip() != word:
        st.error(f"Type {word} in the second field to confirm.")
    else:
        try:
            password_guard().check(text)
        except FinrlPodError as error:
            st.error(theme.escape_markdown(error), icon=":material/lock:")
        else:
            _submit(path, name, user.strip())


def _show_account(path: Path) -> None:
    """Draw which account a dialog acts on: there may be several."""
    journal = load(path)
    st.caption(theme.escape_markdown(f"Account {journal.name} ({path})"))


def _submit(path: Path, name: str, user: str) -> None:
    from finrl_pod.paper.journal.commands import CommandName, submit_command
    from finrl_pod.paper.journal.store import Store

    try:
        store = Store.open(path)
        try:
            number = submit_command(store, CommandName(name), user=user, address=visitor_address())
            st.session_state[_PENDING_COMMAND] = (path, number)
        finally:
            store.close()
    except FinrlPodError as error:
        st.error(theme.escape_markdown(error), icon=":material/error:")
        return
    st.rerun()
