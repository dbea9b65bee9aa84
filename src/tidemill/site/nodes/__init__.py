"""Nodes: what the machine has, which allocations to ask for, to keep and to release.

Knows no server connection.
"""
