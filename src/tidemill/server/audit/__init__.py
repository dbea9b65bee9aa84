"""Who changed what, as a chain of lines, and who ran what where."""
