"""A snapshot of the machine by its nodes' names: pools of equal nodes, windows, what goes to whom. Pure."""
