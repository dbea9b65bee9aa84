"""Files: inputs staged before work is granted, outputs built and delivered after it is done.

Knows no batch system and no lead.
"""
