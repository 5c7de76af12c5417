"""What the pages show, as dataframes and records: read from runs, stored prices and the journal, without Streamlit."""
