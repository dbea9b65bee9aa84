"""Visitors of the pages: log-in, sessions, forged requests, and the port of `tidemill web`. Independent of pages."""
