"""Faults by the ten thousand: `scripts/torture`. A module is one or more kinds of faults."""
