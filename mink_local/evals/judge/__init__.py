"""What a model says of a run's responses: which of two is better, and where they collapse."""
