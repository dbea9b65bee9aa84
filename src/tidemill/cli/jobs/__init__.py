"""Verbs of jobs: submit, list, explain, and read what they left."""
