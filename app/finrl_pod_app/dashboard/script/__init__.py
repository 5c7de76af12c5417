"""The Streamlit script, in a separate folder: Streamlit would serve a folder `pages` next to it as extra pages."""
