"""The terminal: input lines, and everything that is shown."""

MOST_COLUMNS = 100  # of prose: longer lines are hard to read
