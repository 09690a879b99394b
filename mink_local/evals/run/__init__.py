"""Ask every question with every method, and keep each response."""
