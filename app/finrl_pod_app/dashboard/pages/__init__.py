"""The pages, drawn with Streamlit: each of them is a module with `render`; the others are parts of pages."""
