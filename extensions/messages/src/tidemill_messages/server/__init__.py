"""The gateway of a server: jobs and syncs in, replies and state changes out (`names` has those of queues)."""
