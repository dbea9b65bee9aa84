"""Downtimes of sites from calendars, services and files, for the server's hospital."""
