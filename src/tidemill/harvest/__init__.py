"""How many nodes to ask for, and when to give them back. Pure."""
