"""Read a run's records and write its report."""
