"""The report of an operation: every figure that a centre or an experiment asks for of months and years, from files."""
