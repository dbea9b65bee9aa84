"""Workloads replayed on a simulated machine with and without the broker, and what the difference says."""
