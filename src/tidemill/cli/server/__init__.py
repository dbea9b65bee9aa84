"""Verbs of the server: run it, its certificates, its audit log."""
