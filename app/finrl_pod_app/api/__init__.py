"""The Python API behind the public names of `finrl_pod`."""
