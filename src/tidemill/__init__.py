"""Tidemill runs a science collaboration's jobs on supercomputers that it does not own."""

__version__ = "0.1.0"
