"""`mink-eval coverage`: the exact distribution over answers to prompts with a known set of valid answers."""
