"""Who may do what: one guard for all sessions of the server, and a login where other machines reach it."""

from __future__ import annotations

import os
from functools import cache

import streamlit as st

from finrl_pod_app.dashboard.launch import is_own
from finrl_pod_app.dashboard.passwords import Guard, Password, PasswordRefused
from finrl_pod_app.dashboard.settings import Settings

THROUGH_A_PROXY = "through the proxy"
_LOGGED_IN = "logged_in"


@cache
def guard() -> Guard:
    """The same for all sessions, so that nobody gets more tries by opening more pages."""
    return Guard(Password())


def admitted() -> bool:
    """Whether this visitor may see the pages; draws the login where they may not yet.

    On this machine's own address everybody may who is on the machine; elsewhere the password is asked for, once a
    session.
    """
    if serves_this_machine_alone() or st.session_state.get(_LOGGED_IN, False):
        return True
    st.title("finrl_pod")
    with st.form("login"):
        text = st.text_input("Password", type="password")
        sent = st.form_submit_button("Log in", type="primary")
    if sent:
        try:
            guard().check(text)
        except PasswordRefused as error:
            st.error(str(error), icon=":material/error:")
        else:
            st.session_state[_LOGGED_IN] = True
            st.rerun()
    return False


def serves_this_machine_alone() -> bool:
    """Whether the server listens on this machine's own address, and nobody passes other machines on to it; without an
    address it listens on all."""
    address = st.get_option("server.address")
    return bool(address) and is_own(address) and not Settings.read(os.environ).hosts


def visitor_address() -> str:
    """Where the browser is, as the server sees it: what a proxy on this machine passes on looks like this machine."""
    return st.context.ip_address or (THROUGH_A_PROXY if Settings.read(os.environ).hosts else "127.0.0.1")


def default_name() -> str:
    """The name to begin with: that of the account the server runs under, where browser and server share a machine."""
    from finrl_pod_app.paper.commands import own_name

    return own_name() if visitor_address() in ("127.0.0.1", "::1") else ""
