"""Tables and records for the pages, read from the runs, the store and the journal; no Streamlit here."""
