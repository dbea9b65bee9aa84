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
| open | three jobs in a row failed for it, with no success between | no job that would meet it is tried or sent |
| trying | its pause is over | one job is tried; if it succeeds, the breaker closes, else the pause doubles |

The site tries the job that was tried least. If every waiting job was tried before, the server sends one more, so that
a few jobs that can never succeed do not keep a breaker open. A site has at most 32 breakers.

If a node cannot use an image, that counts against the node. After three nodes in a row, or ten times, the image itself
is at fault: the breaker of the application opens, and one event tries it.

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
