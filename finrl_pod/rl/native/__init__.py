"""C++ kernels for training on the CPU, and the Python modules that call them."""
