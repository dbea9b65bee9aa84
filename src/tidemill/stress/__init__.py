"""Stress tests of sites: a level of running payloads is held, measured and compared. Decisions and statistics are pure."""
