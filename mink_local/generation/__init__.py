"""Prompts to text: template, requests, engine, model, log-probabilities."""
