"""Verbs of a site: set it up, run and stop its agent, and what it did to others."""
