"""Time series of a run: of nodes, of the site, of Prometheus."""
