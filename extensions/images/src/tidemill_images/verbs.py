"""The verbs of this extension, in the form of `tidemill.cli.verbs`. Imports nothing: `tidemill --help` reads it."""

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "shared file systems": {
        "trace": ("tidemill_images.cli.trace", "run a command and count what it asks of file systems"),
        "trace show": ("tidemill_images.cli.trace", "the table of a saved profile"),
        "trace merge": ("tidemill_images.cli.trace", "several runs as one profile"),
        "trace explain": (
            "tidemill_images.cli.trace",
            "which search paths cause the failing look-ups, and what avoids them",
        ),
        "image build": (
            "tidemill_images.cli.image",
            "pack the software that a trace used, or whole trees, into an image",
        ),
        "image list": ("tidemill_images.cli.image", "the images of a store"),
        "image inspect": ("tidemill_images.cli.image", "what an image holds and where it came from"),
        "image verify": (
            "tidemill_images.cli.image",
            "whether an image is whole, and what of its sources changed since",
        ),
        "image gc": ("tidemill_images.cli.image", "remove images that no application names"),
        "image export": ("tidemill_images.cli.image", "write an image as one squashfs file"),
        "image run": ("tidemill_images.cli.image", "run a command in an image"),
    },
}
