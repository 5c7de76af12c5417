"""The script alone in a folder: Streamlit would take a folder `pages` beside it for pages of its own making."""
