"""The site's approved applications, and how a job of one becomes a program that pilots can start.

Knows no fleet and no data transfer.
"""
