"""Write docs/failures.md from `model/failure.py`; `--check` says whether it is up to date."""

from __future__ import annotations

import sys

from page import cell, settle

from tidemill.model.failure import POLICY, FailurePolicy, next_step

HEAD = """# Failures

This reference lists the classes of failures, what each means and what to do next.

<!-- Drawn by `make gen` from `src/tidemill/model/failure.py`: edit that. -->

The server, sites and web pages decide by this table.

Only a job's own fault (`application`, `input`) fails a job. After any other failure the job waits, goes to another
site, or both.

| class | means | whose fault | uses up a retry | against the job | also against | tried again at the site | next step |
|---|---|---|---|---|---|---|---|
"""
TAIL = """
*Whose fault* is that of the class; the evidence of a failure may name another one. For example, an input that a site
does not permit is `stage_in`, but the site's fault. `ours` means Tidemill itself, such as a full database; no class
has it.
*Against the job*: if sites return a job three times with this class, the job fails.

## What a site can wait out

While a disk is full, a file system stalls, a data server is unreachable, or a proxy or token has expired, jobs wait
at the site. The site tries a job again at once, then after the pause above, then after twice that, up to an hour. It
asks for no nodes for the job meanwhile. After three days the job goes back to the server with the reason,
and other sites may take it.

- `tidemill job explain` names the trouble, what would end it, and when it is tried again.
- `tidemill site status` and the site's page list all troubles. `SITE/troubles.json` keeps them over restarts.
- The agent notices a renewed certificate, proxy or token file of an endpoint within seconds. A restart of the agent
  tries each trouble at once.

## Breakers

A breaker belongs to one site and one cause: a class, and an application, a data server (`https://host`), the first
directory of a file system, or all inputs.

| state | when | what happens |
|---|---|---|
| closed | at first | each job that fails for the cause waits on its own |
| open | three jobs in a row failed for it, with no success between | all jobs but one that would meet it wait |
| trying | its pause is over | one job is tried; if it succeeds, the breaker closes, else the pause doubles |

What one owner's jobs do blocks nothing for others. `tidemill job explain`, `tidemill site status` and the site's page
say for whom an open breaker blocks the way:

| it blocks | when |
|---|---|
| jobs of one owner below one directory | three jobs of this owner failed there |
| jobs of one owner at the whole data server or file system | its jobs failed below three directories |
| jobs of one owner of the whole application | three jobs of this owner failed for it |
| all owners | jobs of two owners failed, three in all; or the site asked by itself, and got no answer twice |

Where jobs fail, the site asks by itself: a data server for the path of its `[[endpoints]]` entry with the site's own
credential, a file system for its first directory, the stage for room for a small file, an application for the files
that were approved. Jobs decide only which of these places is asked. The site asks a place once a minute at most, and
again after 5 s if there was no answer. A refusal such as 403 or 404 is an answer. The next answer closes a breaker
that was opened in this way. So does a job that succeeds: some servers do not answer for the path of an endpoint and
serve the files below it. After such a success, missing answers do not count until there was an answer.

The site tries a job of the owner who has not failed for the longest time, and of these the one that was tried least. If
no such job waits there untried, the server sends one, so that a few jobs that can never succeed do not keep a breaker
open. An owner has at most 8 breakers at a site, and a site 256. It reports 32 of them, those for all owners first.

If a node cannot use an image, that counts against the node. After three nodes in a row, or ten times, the image itself
is at fault: the breaker of the application opens for the owner, or for all if jobs of two owners failed so. One event
tries it.

A node on which only payloads of one owner fail is in quarantine for this owner's work: where others have work at the
site, the node is used, and starts are not delayed.

## What a site returns

If a site returns a job for a cause of the site, the job waits for other sites. The server offers it to the same site
again after 10 s, then after twice that, up to an hour. The job does not fail, however many sites return it; `tidemill
job explain` names each with its reason. A job that is returned for its own fault goes to a site that has not
refused it, if there is one.
"""


def row(failure: str, policy: FailurePolicy) -> str:
    """A line of the table."""
    wait = policy.back_off
    again = f"after {wait.first_s:g} s to {wait.longest_s / 60:g} min" if wait.longest_s else "-"
    cells = [
        f"`{failure}`", policy.meaning, policy.fault.value, "yes" if policy.counts else "no",
        "yes" if policy.against_job else "no", policy.against.value.replace("nothing", "-"), again,
        next_step(failure),
    ]  # fmt: skip
    return "| " + " | ".join(cell(each) for each in cells) + " |\n"


def drawn() -> str:
    """The page."""
    return HEAD + "".join(row(failure, policy) for failure, policy in POLICY.items()) + TAIL


if __name__ == "__main__":
    sys.exit(settle("failures.md", drawn()))
