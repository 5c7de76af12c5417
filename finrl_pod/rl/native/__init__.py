"""C++ kernels of networks and updates, and their Python side."""
