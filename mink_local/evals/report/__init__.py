"""Read the records of a run and write its report."""
