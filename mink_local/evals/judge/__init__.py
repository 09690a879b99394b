"""Preferences between two samplers' responses, judged by a model, or blindly by people."""
