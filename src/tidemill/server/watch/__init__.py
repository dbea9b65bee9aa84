"""Health and metrics of the running server."""
