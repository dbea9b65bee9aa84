"""What the site knows and how it changes: entries of the append-only log, and the pool of work that they build up.

The lowest room: knows no batch system, no server connection and no fleet directory. `SiteJob`, `SiteLease` and
`SiteFleet` are what this site keeps of what the server calls `Job` and `Lease` and the node side calls `Fleet`.
"""
