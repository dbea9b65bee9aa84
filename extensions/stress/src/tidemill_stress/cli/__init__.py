"""Stress tests of a site."""
