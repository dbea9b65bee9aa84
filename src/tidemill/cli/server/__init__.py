"""Verbs of the server: run it, its certificates, its broker, its audit log."""
