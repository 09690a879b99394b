"""Evaluation: models on tasks with every sampling method and temperature, and what that says."""
