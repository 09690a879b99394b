"""From prompts to text: template, requests, engine, model, log-probabilities."""
