"""The verbs of this extension, in the form of `tidemill.cli.verbs`. Imports nothing: `tidemill --help` reads it."""

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "sites": {
        "report opportunity": (
            "tidemill_study.cli.opportunity",
            "from a machine's accounting: what a guest could harvest, what it is worth, and who would wait",
        ),
        "report accounting": (
            "tidemill_study.cli.accounting",
            "reconcile a month of allocations with the batch system's accounting",
        ),
        "simulate": (
            "tidemill_study.cli.simulate",
            "replay a machine's log: what would be harvested, and who would wait for it",
        ),
    },
}
