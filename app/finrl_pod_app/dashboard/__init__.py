"""The dashboard: a Streamlit application over the runs on disk and the daemon's journal.

`launch` starts the server, `script.main` is what it runs, `pages` draw; `frames` and `figures` are pure functions that
know no Streamlit and hold all that is computed.
"""
