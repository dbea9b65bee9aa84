"""Verbs of applications."""
