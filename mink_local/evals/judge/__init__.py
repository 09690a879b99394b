"""Preferences between the responses of two methods: a model as the judge, or people with a blind sheet."""
