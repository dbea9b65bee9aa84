"""The verbs of this extension, in the form of `tidemill.cli.verbs`. Imports nothing: `tidemill --help` reads it."""

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "jobs": {"report": ("tidemill_report.cli.report", "what was done, as tables or one HTML page")},
}
