"""The verbs of this extension, in the form of `tidemill.cli.verbs`. Imports nothing: `tidemill --help` reads it."""

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "stress tests": {
        "stress run": (
            "tidemill_stress.cli.run",
            "hold levels of running payloads at a site, and measure them",
        ),
        "stress scan": ("tidemill_stress.cli.run", "measure numbers of slots per node and their placement"),
        "stress compare": ("tidemill_stress.cli.compare", "whether two runs of a stress test differ"),
        "stress schedule": ("tidemill_stress.cli.schedule", "repeat a stress test by cron, with a gate"),
    },
}
