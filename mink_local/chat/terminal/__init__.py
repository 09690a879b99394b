"""The terminal: input lines, and everything that is shown."""
