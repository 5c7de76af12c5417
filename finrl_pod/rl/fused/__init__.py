"""Updates of whole minibatches in one kernel: C++ on CPUs, captured graphs and Triton on GPUs."""
