"""The dashboard: a Streamlit application over the runs on disk and the journal of the paper daemon.

`server` starts the process and `script.main` is the script that Streamlit runs. `pages` draw with Streamlit; what they
draw comes from `queries` (dataframes and records read from runs, prices and the journal) and `figures` (Plotly), both
free of Streamlit. `access` and `passwords` decide who may do what, `jobs` runs trainings as separate processes.
"""
