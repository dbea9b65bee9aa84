"""Jobs and failures of a campaign as data frames; `to_polars` works as well."""

from tidemill import Client, JobSpec, frames

client = Client()
sent = client.submit(JobSpec(command=["/bin/true"], events=5), repeat=[2])
client.wait(sent)
tables = frames.from_client(client, campaign=sent.campaign)
jobs = tables["jobs"].arrow.to_pydict()  # tables["jobs"].to_pandas() with `tidemill[pandas]`
print(dict(zip(jobs["id"], jobs["events_done"], strict=True)))
print(len(tables["failures"]), "failures")
