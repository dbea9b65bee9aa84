"""The verbs of this extension, in the form of `tidemill.cli.verbs`. Imports nothing: `tidemill --help` reads it."""

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "server": {
        "downtimes check": (
            "tidemill_downtimes.command",
            "what a file of downtimes says, and what of it is left out",
        ),
    },
}
