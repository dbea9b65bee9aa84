"""Files of outputs in their place: what belongs to a job, and what comes before it ends."""
