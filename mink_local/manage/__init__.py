"""mink-models: list, inspect and download models."""
