"""Studies of a machine's past: its accounting, the broker on a simulated machine, reports of both."""
