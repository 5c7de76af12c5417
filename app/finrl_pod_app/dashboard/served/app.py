"""What `streamlit run` is given. It has a folder of its own: beside a folder `pages` Streamlit would take every file in
there for a page, and run it bare on a direct visit to its address."""

from finrl_pod_app.dashboard.main import main

main()
