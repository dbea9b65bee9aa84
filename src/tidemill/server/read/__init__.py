"""Reads for the API and the pages, in bounded work. Never writes."""
