"""`tidemill up --stop` after a job was canceled: it does not say that the job goes on."""

from __future__ import annotations

from tests.worlds.home.homes import started_home, wait_for

JOB = """campaign = "c"
[[job]]
name = "c"
command = ["/bin/sh", "-c", "echo x > o; [ {event} = 0 ] || sleep 300"]
events = 3
outputs = [{ name = "o", path = "o" }]
"""


def test_a_job_that_was_canceled_is_not_announced_as_one_that_goes_on() -> None:
    with started_home() as home:
        home.stop()
        (home.work / "job.toml").write_text(JOB)
        home.run("up", "--detach")
        try:
            submitted = home.run("submit", "job.toml")
            wait_for(lambda: any(row.events_done for row in home.jobs("c")), home.logs)
            canceled = home.run("job", "cancel", submitted.stdout.strip())
        finally:
            stopped = home.run("up", "--stop")
    assert canceled.returncode == 0, canceled.stderr
    assert stopped.stderr.startswith("stopped; "), stopped.stderr
    assert "had not ended" not in stopped.stderr
