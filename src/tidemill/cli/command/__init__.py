"""What a command line of `run` or `submit` becomes: words, rows of values, inputs, outputs, environment. It asks no
server and prints nothing."""
