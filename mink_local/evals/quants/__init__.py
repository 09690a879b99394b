"""Measure what quantizations of a model lose: divergence from a base file, tasks, speed and size."""
