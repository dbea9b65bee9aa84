"""Ended campaigns that have left the database: their files by month, and how they get there."""
