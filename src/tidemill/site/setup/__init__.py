"""What a new site learns about its machine before the first agent runs: detection, the probe job, what nodes can do.

Knows no agent and no work.
"""
