"""The source of `report.ipynb`: `make gen` makes the notebook from it."""

# %% [markdown]
# # A report as data frames
#
# `tidemill report` makes a page. Here are the same tables as data frames, to go on with. Set `TIDEMILL_ARCHIVE` to
# the archive of
# a server (its directory `archive`, or a copy) before you start. You need `pip install 'tidemill[pandas]'`.

# %%
import os

from tidemill import frames

year = frames.from_archive(os.environ["TIDEMILL_ARCHIVE"])
list(year)

# %% [markdown]
# ## Core-hours per month and site
#
# Each frame is an Arrow table; its schema says what a column means and in which unit.

# %%
print(year["months"].arrow.schema.metadata[b"definition"].decode())
months = year["months"].to_pandas()
months.pivot(index="month", columns="site", values="core_hours").round(0)

# %% [markdown]
# ## Backfill: what was available, and what was used of it

# %%
backfill = year["backfill"].to_pandas()
sites = backfill.groupby("site")[["available", "used", "useful"]].sum()
sites.assign(
    efficiency=sites["used"] / sites["available"], useful_share=sites["useful"] / sites["available"]
).round(3)

# %% [markdown]
# ## Failures by class, as shares of each month

# %%
failures = (
    year["failures"]
    .to_pandas()
    .pivot_table(index="month", columns="class", values="failures", aggfunc="sum", fill_value=0)
)
failures.div(failures.sum(axis=1), axis=0).round(3)

# %% [markdown]
# ## I/O of jobs
#
# `kind` says what was counted, and what is an estimate from traced payloads.

# %%
year["io"].to_pandas().set_index(["application", "quantity"]).round(3)

# %% [markdown]
# ## Single jobs
#
# A year has millions: name the columns that you want. What is in the frames above was added up without holding all
# of them.

# %%
jobs = year.jobs(["app", "site", "wall_us", "setup_us", "events_done"]).to_pandas()
jobs = jobs[jobs["events_done"] > 0]
jobs["event_s"] = (jobs["wall_us"] - jobs["setup_us"]) / jobs["events_done"] / 1e6
jobs.groupby(["app", "site"])["event_s"].describe().round(2)
