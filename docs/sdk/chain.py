"""A job that reads the output of another one: it waits until that is delivered."""

from tidemill import Client, Input, JobSpec, Output, OutputKind

client = Client()
first = client.submit(
    JobSpec(
        command=["/bin/sh", "-c", "echo $TIDEMILL_FIRST >n.txt"],
        events=4,
        outputs=[Output(name="numbers", path="n.txt", kind=OutputKind.CONCAT)],
    )
)
second = client.submit(
    JobSpec(
        command=["/bin/sh", "-c", "wc -l <numbers"],
        inputs=[Input(name="numbers", url=f"job:{first.jobs[0]}/numbers")],
        keep_stdout=True,
    ),
    campaign=first.campaign,
)
client.wait(second)
(member,) = client.results(second)
print("lines:", member.data.decode().strip())
