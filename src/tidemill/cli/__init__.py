"""The command line: one file per verb, and the only part that prints."""
