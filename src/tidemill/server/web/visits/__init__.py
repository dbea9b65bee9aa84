"""Who looks at the pages: log-in, sessions, forged requests, and the port of `tidemill web`. Knows no page."""
