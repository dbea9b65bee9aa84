"""What a command line of `run` or `submit` becomes: words, rows of values, inputs, outputs, environment. Asks no server,
prints nothing."""
