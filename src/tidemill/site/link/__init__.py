"""The exchange with the server: transport, the sync, and the screening of the server's orders.

Knows no batch system.
"""
