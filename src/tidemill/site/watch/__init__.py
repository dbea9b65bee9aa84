"""What people and monitoring see of the agent: metrics and views. Decides nothing."""
