"""What only the page of results needs, outside the package; see README.md."""
