"""Specifications of jobs: each stored once for each owner, and what a retry changes in them. Knows no site."""
