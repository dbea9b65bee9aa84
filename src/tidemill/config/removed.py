"""Former keys of configuration files, and what applies instead: one sentence each, for who still sets one. Pure.

Keys that became constants of their record (`keys.constant`) are not here: their sentence is made of the field. By the
record that reads the file; `io[].name` is a key of each `[[io]]`. A constant is named with its file in `src/tidemill`.
"""

from __future__ import annotations

REPLACED: dict[str, dict[str, str]] = {
    "SiteConfig": {
        "deny_submitters": "`tidemill site deny NAME --reason TEXT` denies a submitter, without a restart",
        "broker.user": 'the broker\'s user is in its URL: `server = "amqps://USER@HOST/VHOST"`',
        "start_ops_default": "the file of an application that was never traced may say `start_ops`; else its "
        "starts are not paced",
        "start_bytes_default": "the file of an application that was never traced may say `start_bytes`; else its "
        "starts are not paced by bytes",
        "processes_max": "a slot has 256 processes and 32 more for each core, and the file of an application may say "
        "`processes_max`",
        "node_binary": "a `tidemill-node` in the site directory, or a link to one there, is used instead of the "
        "installed one",
        "allow_unisolated": "`isolation` says it: with `auto` a shared site needs namespaces, with `optional` it runs "
        "payloads without them where the kernel gives none",
        "with_credentials": "`show` of your own site names credentials, too",
        "spill_dir": "it is `fast_dir` now, which inputs of 1 GB and more use, too",
        "cluster.fast_dir": "it is `fast_dir` of the file itself now, which large work directories use, too",
        "harvest.lead": '`harvest.tcp` says what pilots reach: `tcp = "nodes"` in place of `lead = "none"`; '
        '`lead = "beside"` is what `tcp = "open"`, the default, does',
        "harvest.node_to_node": '`harvest.tcp` says what pilots reach: `tcp = "lead"` in place of '
        '`node_to_node = false`, or `tcp = "closed"` where they reach no lead either',
        "accounts[].used_node_hours": "`node_hours` is what Tidemill may use: write what was left of the grant there",
        "local.cores_per_node": "`node.cores` says it",
        "local.memory_mb_per_node": "`node.memory_mb` says it",
        "local.gpus_per_node": "`node.gpus` says it",
        "cluster.cores_per_node": "`node.cores` says it",
        "cluster.memory_mb_per_node": "`node.memory_mb` says it",
        "cluster.gpus_per_node": "`node.gpus` says it",
        "containers.NAME.path": '`command` holds the program, and options before its verb: `["/usr/bin/podman"]`',
        "containers.NAME.global_options": "`command` holds the program, and options before its verb",
        "cluster.nice": "Tidemill's jobs have `--nice=1000000`, on PBS and Grid Engine the least priority (`-p`); "
        "`--nice=N` or `-p N` in `cluster.directives` wins over it",
        "cluster.burst_buffer": "`cluster.directives` takes its lines: those that begin with `#` go to the head of the "
        "script",
        "replicas.file": "`replicas.files` names a file, or a directory of such files",
        "replicas.directory": "`replicas.files` names a file, or a directory of such files",
        "replicas.rucio.account": "the URL names the account: `https://ACCOUNT@rucio.example.org`",
        "replicas.rucio.username": "the first line of `replicas.rucio.secret_file` is the user",
        "replicas.rucio.login_file": "it is `replicas.rucio.secret_file`, as in every other table",
        "replicas.rucio.password_file": "`replicas.rucio.secret_file` has it on its second line, after the user",
        "endpoints[].read": '`access` says it: "read" (default), "write" or "both"',
        "endpoints[].write": '`access` says it: "read" (default), "write" or "both"',
        "endpoints[].discover_token": '`token_file = "discover"` shows the token that the order of the WLCG finds',
        "endpoints[].region": "`service` names it at Amazon, as `https://s3.eu-central-1.amazonaws.com`; of other "
        "services `region` in the `credentials_file`",
        "endpoints[].profile": "the section `default` of `credentials_file` is used: give each endpoint its own file",
        "caches[].form": "a cache with `memory`, or whose `url` has the host `localhost`, is one of each node; others "
        "are shared",
        "caches[].settings": "`directory` names the directory of that cache.toml",
        "caches[].program": "an executable `xrootd` in the `directory` is used, else the one on the node's PATH",
        "caches[].upstream": "with `memory`, `url` is the cache to read through",
        "caches[].origins": "a cache fetches `root:` and its kin; one that fetches another scheme says so at the end "
        "of its `url`, as `root://dtn01:21094//https:`",
    },
    "ClientConfig": {
        "broker": "`server` names the broker too: `amqps://USER@HOST/VHOST`",
        "user": 'the broker\'s user is in its URL: `server = "amqps://USER@HOST/VHOST"`',
    },
    "ServerConfig": {
        "upgrade": "`tidemill server run --upgrade` does it at each start, `tidemill server upgrade` once; both copy a "
        "SQLite database first",
        "tokens.issuers[].jwks_file": "`jwks` names a file or an https URL",
        "tokens.issuers[].jwks_url": "`jwks` names a file or an https URL",
        "roles.members[].role": '`[roles.members]` is one table with a line for each, `"WHO" = "ROLE NAME"`',
        "roles.members[].name": '`[roles.members]` is one table with a line for each, `"WHO" = "ROLE NAME"`',
        "roles.members[].who": '`[roles.members]` is one table with a line for each, `"WHO" = "ROLE NAME"`',
        "roles.members[].subject": '`[roles.members]` has a line for each, `"/DC=org/..." = "ROLE NAME"`',
        "roles.members[].issuer": '`[roles.members]` has a line for each, `"SUB@ISSUER" = "ROLE NAME"` or '
        '`"group:GROUP@ISSUER" = "ROLE NAME"`',
        "roles.members[].token": '`[roles.members]` has a line for each, `"SUB@ISSUER" = "ROLE NAME"`',
        "roles.members[].group": '`[roles.members]` has a line for each, `"group:GROUP@ISSUER" = "ROLE NAME"`',
        "roles.revoked_file": "the file `revoked.txt` in the server's directory is the list, or a link there to it",
        "archive.dir": "`archive` in the server's directory is the archive: move it there, or make a link there to it "
        "(`ln -s`)",
        "amqp.user": "the broker's user is in its URL: `amqps://USER@HOST/VHOST`",
        "amqp.submitters": '`[amqp.users]` says what each user of the broker is: `USER = "submitter NAME"`',
        "amqp.sites": '`[amqp.users]` says what each user of the broker is: `USER = "site NAME"`',
        "amqp.operators": '`[amqp.users]` says what each user of the broker is: `USER = "operator NAME"`',
        "amqp.queue_type": "`tidemill server broker-setup --queue-type quorum` declares such queues",
        "downtimes.sources[].path": "`from` names a file or an https URL",
        "downtimes.sources[].url": "`from` names a file or an https URL",
        "mail.security": '`mail.server` says it: `smtps://HOST` for "tls", `smtp+plain://HOST` for "none"; `HOST` '
        'alone is "starttls"',
        "mail.ca_file": "it is `mail.ca`, as in every other table",
        "mail.login_file": "it is `mail.secret_file`, as in every other table",
        "mail.recipients": "`notify.allowed` lists what submitters may have notified: `mail:*@example.org`",
        "notify.hooks[].ca_file": "it is `ca`, as in every other table",
        "notify.hooks[].private": "a URL that holds a private address itself may be posted to, and a name with one if "
        "`ca` is set",
        "notify.hooks[].submitters": "`notify.allowed` lists what submitters may have notified: `hook:NAME`",
        "notify.hook_hosts": "`notify.allowed` lists what submitters may have notified: `https://*.example.org`",
        "notify.hook_secret_file": "it is `notify.secret_file`, as in every other table",
        "web.secret_file": "the file `session.key` in the server's directory is the secret, or a link there to it",
        "web.session_key_file": "the file `session.key` in the server's directory is the secret, or a link there to it",
    },
    "CacheConfig": {
        "one_namespace": "`federation = true` says that all origins serve the same file under the same path; they may "
        "redirect the cache then",
        "redirects_max": "`federation = true` lets origins redirect the cache up to 16 times, and says that all serve "
        "the same file under the same path (REDIRECTS_MAX in config/cache.py)",
    },
}
"""Something else says what they said: a file without both says something else than it did."""

REMOVED: dict[str, dict[str, str]] = {
    "SiteConfig": {
        "local.queue_wait_s": "emulated nodes are granted as soon as they are free",
        "cluster.fast_bytes_min": "inputs of 1 GB and more go to `fast_dir` (FAST_BYTES_MIN in site/fleet/fleets.py)",
        "cluster.json": "Slurm's text is read, and its JSON where text does not say all",
        "harvest.payback": "a node is taken only if it can work 3 times as long as its start-up takes "
        "(payback in harvest/plan/situation.py)",
        "harvest.waiting_per_idle": "at most 2 pilots wait in the queue per idle node "
        "(waiting_per_idle in harvest/plan/situation.py)",
        "harvest.allocations_max": "`nodes_max` bounds allocations too: each has at least one node",
        "harvest.quarantine_s": "a node stays in quarantine for a day (QUARANTINE_S in site/nodes/quarantine.py)",
        "harvest.fast_failure_s": "a start that fails within 120 s is a fast failure "
        "(FAST_FAILURE_S in site/nodes/quarantine.py)",
        "yield.foreign_cancels": "3 cancellations within 10 minutes that Tidemill did not order drain the site "
        "(FOREIGN_CANCELS in site/staff/stopping.py)",
        "yield.foreign_cancels_s": "3 cancellations within 10 minutes that Tidemill did not order drain the site "
        "(FOREIGN_CANCELS_S in site/staff/stopping.py)",
        "accounts[].units": "messages count node-hours, as `node_hours` does",
        "accounts[].units_per_node_hour": "messages count node-hours, as `node_hours` does",
        "accounts[].unit": "messages count node-hours, as `node_hours` does",
        "accounts[].warn_at": "a grant is reported from 90 % on (WARN_AT in harvest/account/ledger.py)",
        "accounts[].stop_at": "nothing is asked for from 98 % of a grant on (STOP_AT in harvest/account/ledger.py)",
        "harvest.stage_readers": "1 node reads a file from the shared file system at a time, or 16 where nodes do not "
        "reach each other (STAGE_READERS in site/fleet/fleets.py)",
        "output_name": "delivered outputs are called `CAMPAIGN/JOB-OUTPUT`; the `url` of an output gives it "
        "another name",
        "containers.NAME.version": "all versions get the same words; Charliecloud before 0.27 needs "
        '`options = ["--no-home"]`',
        "containers.NAME.setuid": 'with `isolation = "off"` Apptainer uses its set-user-id program, unless `options` '
        "hold `--userns`",
        "stage_file_bytes_max": "one staged input may have a fifth of `stage_bytes_max`, or 20 GB where that is more "
        "(STAGE_FILE_BYTES in config/site.py)",
        "mail.sender": "mail to the `contact` is sent in its own name",
        "record_flush_s": "results become durable within 100 ms (RECORD_FLUSH_MS in site/fleet/fleets.py)",
        "lease_core_s_max": "at most 10 million core-seconds of work are leased "
        "(LEASE_CORE_S_MAX in site/nodes/capacity.py)",
        "tick_s": "the agent's loop pauses 50 ms while work is running (TICK_S in site/state/served_site.py)",
        "tick_max_s": "the agent's loop pauses at most 1 s while nothing runs (TICK_MAX_S in site/run.py)",
        "stage_files_max": "a stage has at most 1,000,000 files (STAGE_FILES_MAX in site/data/staging.py)",
        "transfer.cache_age_s": "staged inputs are kept for 7 days after their last use "
        "(IDLE_AGE_S in site/data/staging.py)",
        "endpoints[].file_bytes_max": "the site's bound on files that it stages applies to every endpoint",
        "replicas.keep_s": "Rucio's answers are used for 10 minutes (RUCIO_KEPT_S in site/data/routing.py)",
        "log_snapshot_lines": "the site's log is condensed after 50,000 lines "
        "(SNAPSHOT_LINES in site/state/served_site.py)",
    },
    "ServerConfig": {
        "half_life_s": "past usage counts half after a week (HALF_LIFE_S in server/core/dispatcher.py)",
        "data_wait_s": "a job waits 5 minutes for a site nearer to its data "
        "(DATA_WAIT_S in server/core/dispatcher.py)",
        "tokens.lifetime_s_max": "a token lives 6 hours at most, as the WLCG profile says "
        "(LIFETIME_S_MAX in server/identity/tokens.py)",
        "tokens.keys_kept_s": "an issuer's keys are fetched again after an hour "
        "(KEYS_KEPT_S in server/identity/tokens.py)",
        "roles.margin_s": "a credential should outlast its jobs by 10 minutes (MARGIN_S in server/core/dispatcher.py)",
        "amqp.queue_bytes_max": "a queue holds at most 1 GB (QUEUE_BYTES_MAX in server/gateway/setup.py)",
        "notify.give_up_s": "a message that cannot be sent is given up after 5 days "
        "(GIVE_UP_S in server/notify/notifier.py)",
        "notify.keep_s": "sent and abandoned messages are kept for 7 days (KEPT_S in server/notify/notifier.py)",
        "downtimes.sources[].format": "the content of a source shows whether it is a calendar, JSON of CRIC or TOML",
        "amqp.progress": "messages report changes of state only; how many events of a running job are done is in "
        "`GET /v1/changes`",
        "downtimes.hosts": "only the URLs of `downtimes.sources` are read, and no redirect is followed",
        "notify.hooks[].plain": "a URL of `http` is posted to as it is written",
        "web.session_s": "a login to the pages ends after an hour (SESSION_S in server/run.py)",
    },
}
"""Nothing has to be written in their place."""
