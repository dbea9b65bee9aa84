"""What sites measured on their nodes, for a while and in memory only."""
