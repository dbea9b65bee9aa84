"""Stress tests of sites: a level of running payloads is held, measured and compared. Statistics are pure."""
