"""More places of far files: lists in the site's files, and Rucio."""
