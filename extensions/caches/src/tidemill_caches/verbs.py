"""The verbs of this extension, in the form of `tidemill.cli.verbs`. Imports nothing: `tidemill --help` reads it."""

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "caches": {
        "cache init": (
            "tidemill_caches.cli.init",
            "write the configuration of a block cache in front of far storage",
        ),
        "cache run": ("tidemill_caches.cli.run", "run a cache, and start it again after a crash"),
        "cache status": ("tidemill_caches.cli.status", "whether a cache runs and is well, and what it holds"),
        "cache ls": ("tidemill_caches.cli.ls", "list what a cache holds, by dataset and by file"),
        "cache purge": ("tidemill_caches.cli.purge", "remove files from a cache"),
        "cache check": (
            "tidemill_caches.cli.check",
            "compare cached blocks with the origin, and drop damaged files",
        ),
        "cache study": (
            "tidemill_caches.cli.study",
            "measure what a cache would do for a data set, and name the setting to use",
        ),
    },
}
