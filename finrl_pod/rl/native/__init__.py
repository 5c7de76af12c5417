"""C++ kernels of the operations that networks and optimisers share."""
