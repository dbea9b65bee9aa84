"""What a retry may change in a job, and how memory and walltime grow by themselves. Pure."""
