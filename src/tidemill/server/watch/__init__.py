"""Health and metrics of the running server, as data and text. Knows no HTTP."""
