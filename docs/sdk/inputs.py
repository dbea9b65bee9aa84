"""Give a job a file of yours, and each event a line of another."""

import tempfile
from pathlib import Path

from tidemill import Client, Input, InputKind, JobSpec

with tempfile.TemporaryDirectory(dir=".") as directory:
    here = Path(directory).absolute()
    (here / "calibration.txt").write_text("42\n")
    (here / "runs.txt").write_text("run-a\nrun-b\nrun-c\n")
    client = Client()
    sent = client.submit(
        JobSpec(
            command=["/bin/sh", "-c", 'echo "$0 with $(cat calibration)"', "{line}"],
            events=3,
            inputs=[
                Input(name="calibration", url=(here / "calibration.txt").as_uri()),
                Input(name="runs", url=(here / "runs.txt").as_uri(), kind=InputKind.EACH),
            ],
            keep_stdout=True,
        )
    )
    client.wait(sent)
    for member in client.results(sent):
        print(member.data.decode(), end="")
