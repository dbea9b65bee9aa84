"""What a machine's own accounting says of past jobs: sacct, PBS, SWF. Streams; knows no server, no site, no report."""
