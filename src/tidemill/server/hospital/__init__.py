"""Jobs that are treated away from home, downtimes of sites, and which site is near to a job's data."""
