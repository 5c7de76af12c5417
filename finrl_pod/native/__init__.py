"""Builds and loads the project's C++ kernels, each of which stands beside a plain torch version of the same thing."""
