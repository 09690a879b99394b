"""`mink-eval quants`: what quantizations lose: divergence from a base file, tasks, speed and size."""
