"""Work to the pilots and records back: grants, fleet directories, leads, and wide payloads.

Knows no idle nodes and no server.
"""
