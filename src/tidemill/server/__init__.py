"""The server: takes jobs, leases ranges of them to sites, counts what comes back. Touches no site."""
