"""Take outputs as file objects, and copy one to a directory."""

import tempfile
from pathlib import Path

from tidemill import Client, JobSpec, Output

client = Client()
spec = JobSpec(
    command=["/bin/sh", "-c", 'echo "seed $TIDEMILL_SEED" >hits.txt'],
    events=3,
    outputs=[Output(name="hits", path="hits.txt")],
)
sent = client.submit(spec)
client.wait(sent)
for file in client.files(sent):
    with file.open() as content:
        print(file.name, "events", file.first, "and", file.count, ":", content.read().decode(), end="")
with tempfile.TemporaryDirectory() as directory:
    print(file.copy(Path(directory)).name)
