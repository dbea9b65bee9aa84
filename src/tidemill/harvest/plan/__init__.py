"""What to cancel, to shorten and to submit, from counts of nodes in one pool; knows no node by its name. Pure."""
