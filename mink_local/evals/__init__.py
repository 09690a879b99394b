"""`mink-eval`: methods and temperatures compared on sets of questions."""
