"""Some events of a job: canceled or retried by its owner, while the others go on. Must not know who asks, nor how jobs
end."""
