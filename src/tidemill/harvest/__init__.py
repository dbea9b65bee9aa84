"""How many nodes to request, and when to release them. Pure."""
