"""What is counted of jobs: activity over time, and the classes by size and length of regular jobs. Pure."""
