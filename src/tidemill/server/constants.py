"""The server's times and bounds: what no operator has to decide, with its reason.

Processes that tests start may take other values: see `tidemill.timing`.
"""

from __future__ import annotations

from tidemill.timing import replace_for_tests

MOVES_MAX = 2
"""Move a job into wards at most twice: what failed at home and in two wards fails for a reason of its own."""

DOWNTIMES_EVERY_S = 300.0
"""Pause between two readings: downtimes are announced hours before."""

DOWNTIMES_LEAD_S = 1800.0
"""Treat a site as down from this time before a downtime begins: it gets no new work, and its queue moves,
while running work may end."""

MAILS_PER_MIN_MAX = 60
"""Mails a minute at most; more wait their turn. Mail servers do not take this for a flood."""

MAIL_TIMEOUT_S = 60.0
"""Wait at most T for each answer of the mail server; at the end of a mail, 10 minutes or more (RFC 5321,
4.5.3.2)."""

FAILURES_SHARE = 0.1
"""For `failures`: from a tenth of failed events on. A submitter may set another share in a campaign."""

GATHER_S = 10.0
"""Report what happens within this time after the first event together with it: a campaign's last jobs end
together."""

DIGEST_S = 300.0
"""Minimum time between two messages to an addressee; notices wait meanwhile. More is noise."""

NOTICES_PER_HOUR_MAX = 12
"""Messages to one addressee in an hour, at most: one in 5 minutes."""

NOTICES_LOOK_S = 1.0
"""Pause between two reads of new events: one indexed query."""

NOTICES_RETRY_S = 5.0
"""First pause after a message that could not be sent."""

NOTICES_RETRY_MAX_S = 300.0
"""Longest pause between two tries: a mail server that is back is found within 5 minutes."""

OPEN_KINDS_MAX = 500
"""Kinds of jobs of one submitter that have not ended, at most: each campaign and each combination of
application, cores, memory, devices and width in it is one; every sync has to examine all of them."""

CAMPAIGN_KINDS_MAX = 2_000
"""Kinds of jobs that one campaign ever has, at most: pages list them all."""

STORED_BYTES_MAX = 20_000_000_000
"""Bytes of one submitter's jobs in the database, at most: 300 for a job, and each different specification."""

SITES_NAMED_MAX = 20
"""Sites that one submitter's jobs name before these sites have joined, at most: names that no site has are a
row each, for ever."""

REQUESTS_PER_S = 100.0
"""Requests of one submitter in a second, on average; ten seconds' worth may come at once. TIME_SHARE
bounds what they cost."""

TIME_SHARE = 0.2
"""Part of the server's time that one submitter's requests take, on average; more of them have to wait."""

REQUESTS_MAX = 32
"""Requests of one submitter that are under way at once, at most; feeds of changes not counted."""

FEEDS_MAX = 60
"""Feeds of changes and logs that one submitter waits for at once, at most: one for each open page and
client."""

CONNECTIONS_MAX = 100
"""Connections with one client certificate at once, at most: the process has 1,024 descriptors on many
machines."""

HEAD_S = 20.0
"""End a request whose headers are not complete after this time: no honest client sends them one by one."""

STALL_S = 60.0
"""End a request when less than 1 kB of its body arrives, or none of its answer is read, in this time."""

SITE_LOST_S = 600.0
"""A site that is silent for this time loses its leases to other sites: an agent that restarts, or a network
that fails over, is back before."""

CERTIFICATES_RELOAD_S = 60.0
"""Read changed certificates, CAs and CRLs again after this time: a revocation counts within a minute."""

AUDIT_KEPT_S = 34560000.0
"""Keep the audit log, and the record of who ran where, for 400 days: a year and a month, so that a security
team that looks back over a year finds whole months."""

replace_for_tests("server", globals())
