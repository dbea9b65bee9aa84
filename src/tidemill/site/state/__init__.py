"""What the site knows and how it changes: entries of the append-only log, and the pool that they build up.

The lowest room: knows no batch system, no server connection and no fleet directory.
"""
