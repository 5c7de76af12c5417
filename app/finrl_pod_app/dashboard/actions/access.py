"""Access of visitors: the passwords of commands, the logout, and who a visitor is."""

from __future__ import annotations

import os
from functools import cache

import streamlit as st

from finrl_pod_app.dashboard.logins import Logins, cookie_name
from finrl_pod_app.dashboard.passwords import Password, PasswordGuard, is_loopback
from finrl_pod_app.dashboard.settings import Settings

VIA_PROXY = "through the proxy"  # recorded as the address of commands from unknown machines behind a proxy


@cache
def command_guard() -> PasswordGuard:
    """The process-wide guard of commands; wrong passwords at the login do not delay those who are logged in."""
    return PasswordGuard(Password())


def show_logout() -> None:
    """Draw the button that ends the login of this browser; none where no login is needed."""
    if is_local_only() or not st.button("Log out", icon=":material/logout:", width="stretch", key="log out"):
        return
    Logins().end(st.context.cookies.get(cookie_name(int(st.get_option("server.port"))), ""))
    st.html("<script>location.reload()</script>", unsafe_allow_javascript=True)
    st.stop()


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
