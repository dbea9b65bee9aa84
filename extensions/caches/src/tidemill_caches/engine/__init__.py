"""One cache: its configuration, directory and limits, the process that serves it, and whether that is well."""
