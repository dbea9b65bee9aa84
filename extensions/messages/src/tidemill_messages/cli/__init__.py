"""Verbs of submitters, and of the broker's staff."""
