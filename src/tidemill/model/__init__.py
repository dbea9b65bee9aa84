"""Pure types of the domain: jobs, events, ranges, leases, allocations, failures. Knows no I/O."""
