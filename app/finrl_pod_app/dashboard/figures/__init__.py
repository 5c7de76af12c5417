"""Plotly figures for the pages, from frames and arrays; no Streamlit here."""
