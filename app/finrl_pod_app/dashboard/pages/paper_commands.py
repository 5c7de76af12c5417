"""Halt, resume and flatten: a halt after one confirmation, the others with the password and a word that is typed."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from finrl_pod.errors import FinrlPodError
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.access import default_name, guard, visitor_address
from finrl_pod_app.dashboard.passwords import Password
from finrl_pod_app.dashboard.queries.paper_journal import Journal

LONGEST_NAME = 64
_FOLLOWED = "paper_command"  # number of the last command of this visitor, until it was answered
_WORDS = {
    "resume": "The daemon will trade again at its next decision, within the risk limits.",
    "flatten": "All own shares will be sold at the market. Nothing is bought afterwards until it is resumed.",
}


def controls(path: Path) -> None:
    """The three buttons."""
    with st.container(horizontal=True, key="commands"):
        if st.button(
            "Halt", type="primary", icon=":material/front_hand:", help="No more orders; own live ones are cancelled."
        ):
            _halt(path)
        if st.button("Resume…", icon=":material/play_arrow:", help="Trade again. Needs the password."):
            _resume(path)
        if st.button("Flatten…", icon=":material/sell:", help="Sell all own shares. Needs the password."):
            _flatten(path)


def follow(journal: Journal) -> None:
    """Tell this visitor once what became of the command they gave."""
    number = st.session_state.get(_FOLLOWED)
    answered = journal.commands[(journal.commands.id == number) & journal.commands.outcome.notna()]
    if len(answered):
        row = answered.iloc[0]
        st.toast(theme.plain(f"{row['name']}: {row.outcome}"), icon=":material/task_alt:", duration="long")
        del st.session_state[_FOLLOWED]


@st.dialog("Halt trading?", icon=":material/front_hand:")
def _halt(path: Path) -> None:
    st.markdown("No more orders are sent from now on, and own live ones are cancelled. Positions are kept.")
    user = default_name() or st.text_input("Your name", max_chars=LONGEST_NAME, help="Kept with the command.")
    if st.button("Halt now", type="primary", key="halt-now"):
        _give(path, "halt", user.strip())


@st.dialog("Resume trading?", icon=":material/play_arrow:")
def _resume(path: Path) -> None:
    _behind_password(path, "resume")


@st.dialog("Sell everything?", icon=":material/sell:")
def _flatten(path: Path) -> None:
    _behind_password(path, "flatten")


def _behind_password(path: Path, name: str) -> None:
    word = name.upper()
    st.markdown(_WORDS[name])
    if not Password().is_set:
        st.error("No password is set yet. Set one on the server, then come back:", icon=":material/lock:")
        st.code("finrl-pod dashboard set-password", language="bash")
        return
    with st.form(f"{name}-form", border=False):
        user = st.text_input("Your name", default_name(), max_chars=LONGEST_NAME, help="Kept with the command.")
        typed = st.text_input(f"Type {word} to confirm")
        text = st.text_input("Password", type="password", autocomplete="current-password")
        sent = st.form_submit_button(word.capitalize(), type="primary")
    if not sent:
        return
    if not user.strip():
        st.error("Your name is missing: it is kept with the command.")
    elif typed.strip() != word:
        st.error(f"Type {word} into the second field to confirm.")
    else:
        try:
            guard().check(text)
        except FinrlPodError as error:
            st.error(theme.plain(error), icon=":material/lock:")
        else:
            _give(path, name, user.strip())


def _give(path: Path, name: str, user: str) -> None:
    from finrl_pod.paper.journal.commands import CommandName
    from finrl_pod.paper.journal.store import Store
    from finrl_pod_app.paper.commands import give

    try:
        store = Store.open(path)
        try:
            st.session_state[_FOLLOWED] = give(store, CommandName(name), user=user, address=visitor_address())
        finally:
            store.close()
    except FinrlPodError as error:
        st.error(theme.plain(error), icon=":material/error:")
        return
    st.rerun()
