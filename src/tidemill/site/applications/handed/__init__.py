"""What jobs may hand to approved programs besides parameters. Knows no slot, no lease and no program of a fleet."""
