"""Messages between processes, each defined once: `api` (clients, sites, server), `node` (agent, lead, pilot)."""
