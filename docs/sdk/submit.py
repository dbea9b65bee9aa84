"""Submit a command for ten events, wait, and print the outcome."""

from tidemill import Client, JobSpec

client = Client()
sent = client.submit(
    JobSpec(command=["/bin/sh", "-c", "echo event $TIDEMILL_FIRST"], events=10, keep_stdout=True)
)
(job,) = client.wait(sent)
assert job.state == "COMPLETED", job.reason
print(f"job {job.id} of campaign {sent.campaign}: {job.events_done} events")
