"""The verbs of this extension, in the form of `tidemill.cli.verbs`. Imports nothing: `tidemill --help` reads it."""

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "jobs": {
        "message submit": ("tidemill_messages.cli.message", "submit a job file by the message broker"),
        "message follow": (
            "tidemill_messages.cli.message",
            "follow state changes of your jobs through the broker",
        ),
    },
    "server": {
        "server broker-setup": (
            "tidemill_messages.cli.broker_setup",
            "users, rights and queues that RabbitMQ needs for messages",
        ),
    },
}
