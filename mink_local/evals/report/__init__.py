"""The report of any measurement: its parts, and the files that it is written to."""
