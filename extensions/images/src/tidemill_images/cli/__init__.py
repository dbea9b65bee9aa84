"""The verbs of this extension, one file each."""
