"""Access of visitors: the login for other machines, and who a visitor is."""

from __future__ import annotations

import os
from functools import cache

import streamlit as st

from finrl_pod_app.dashboard.passwords import Password, PasswordGuard, PasswordRefused, is_loopback
from finrl_pod_app.dashboard.settings import Settings

VIA_PROXY = "through the proxy"  # recorded as the address of commands from unknown machines behind a proxy
_LOGGED_IN = "logged_in"


@cache
def password_guard() -> PasswordGuard:
    """The process-wide guard, so that opening more pages gives no more tries."""
    return PasswordGuard(Password())


def require_login() -> bool:
    """Whether this visitor may see the pages; draws the login form if not.

    A server on a loopback address admits everyone on the machine. Otherwise the password is required once per session.
    """
    if is_local_only() or st.session_state.get(_LOGGED_IN, False):
        return True
    st.title("finrl_pod")
    with st.form("login"):
        text = st.text_input("Password", type="password")
        is_submitted = st.form_submit_button("Log in", type="primary")
    if is_submitted:
        try:
            password_guard().check(text)
        except PasswordRefused as error:
            st.error(str(error), icon=":material/error:")
        else:
            st.session_state[_LOGGED_IN] = True
            st.rerun()
    return False


def is_local_only() -> bool:
    """Whether the server listens on a loopback address only and no proxy forwards other machines."""
    address = st.get_option("server.address")  # without one Streamlit listens on all interfaces
    return bool(address) and is_loopback(address) and not Settings.from_environment(os.environ).hosts


def visitor_address() -> str:
    """IP address of the visitor; `VIA_PROXY` if a proxy hides it."""
    hosts = Settings.from_environment(os.environ).hosts
    return st.context.ip_address or (VIA_PROXY if hosts else "127.0.0.1")


def default_user_name() -> str:
    """Account name of the server for visitors on this machine, else empty."""
    from finrl_pod.paper.journal.commands import current_user

    return current_user() if visitor_address() in ("127.0.0.1", "::1") else ""
