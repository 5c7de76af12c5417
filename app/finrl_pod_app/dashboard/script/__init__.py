"""The Streamlit script, in a separate folder: Streamlit would serve a folder `pages` beside it as extra pages."""
