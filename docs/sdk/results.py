"""Read results as jobs end, not when all have ended."""

from tidemill import Client, JobSpec

client = Client()
sent = client.submit(
    [
        JobSpec(command=["/bin/sh", "-c", f"echo {n} squared is $(({n} * {n}))"], keep_stdout=True)
        for n in range(4)
    ]
)
for job in client.as_completed(sent):
    for member in client.results([job.id]):
        print(member.data.decode(), end="")
