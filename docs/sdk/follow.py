"""Follow state changes as they happen."""

from tidemill import Client, JobSpec

client = Client()
sent = client.submit(JobSpec(command=["/bin/true"], events=2), repeat=[3])
for change in client.follow(sent):
    print(f"job {change.job}: {change.state}, {change.events_done} events done")
