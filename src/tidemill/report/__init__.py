"""8 report: what happened, asked from the server, as tables and one self-contained HTML page. Prints nothing."""
