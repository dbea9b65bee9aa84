"""Batch systems behind one contract. Knows nothing of jobs, leases or fleets: names, nodes and command lines."""
