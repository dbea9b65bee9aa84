"""Verbs of applications, traces and images."""
