"""Find out why events failed, and run only those again."""

from tidemill import Client, JobSpec

client = Client()
spec = JobSpec(
    command=["/bin/sh", "-c", 'test "$TIDEMILL_FIRST" != 2 || { echo "no vertex found" >&2; exit 3; }'],
    events=4,
    retries=0,
    failed_max=1,
)
sent = client.submit(spec)
(job,) = client.wait(sent)
print(job.state, job.events_done, "done", job.events_failed, "failed")
for failure in client.failures(job=job.id):
    evidence = failure.evidence
    print(f"event {failure.event}: {evidence.failure}, {evidence.message}")
client.retry([job.id])
