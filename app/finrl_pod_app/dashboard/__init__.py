"""The dashboard: a Streamlit application over the runs on disk and the journal of the paper daemon.

`serving` starts the process and `script.main` is the script that Streamlit runs. `pages` draw with Streamlit; what they
draw comes from `queries` (dataframes and records read from runs, prices and the journal) and `figures` (Plotly), both
free of Streamlit. `passwords` and `actions.access` decide who may do what; `actions.jobs` runs trainings as processes.
"""
