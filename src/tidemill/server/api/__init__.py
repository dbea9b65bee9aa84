"""The HTTP API: one table of routes drives handlers and the OpenAPI document."""
