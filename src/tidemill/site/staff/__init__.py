"""What the site's staff decide: stop and resume, deny a submitter, and when a guest has to leave.

Knows files and mail; knows no batch system and no fleet.
"""
