-- The first schema. {id}, {bytes}, {clustered} and {hot} are spelled for each database by queries.py.
-- Codes of states: 0 WAITING, 1 RUNNING, 2 COMPLETED, 3 PARTIAL, 4 FAILED, 5 CANCELED (jobs);
-- 0 ACTIVE, 1 SETTLED, 2 RELEASED, 3 LOST (leases). Site 0, place 0 and ward 0 mean none.

-- Counters that never go back. `notified`: up to which state change notices were gathered. `audit_lines`: the audit log's
-- known length. `next_spec`: readers remember specifications by their number, so a number is not used again.
CREATE TABLE meta (name TEXT PRIMARY KEY, value BIGINT NOT NULL);
INSERT INTO meta (name, value) VALUES ('next_job', 1), ('next_lease', 1), ('next_change', 1), ('notified', 0), ('next_audit', 1), ('audit_lines', 0), ('next_spec', 1);

-- ---- campaigns and what they are made of ----

-- A campaign's name belongs to its owner: others may use the same. `batch`: the archive's batch in which the campaign leaves
-- the database; 0 = it stays. From then on nothing of it changes.
CREATE TABLE campaigns (
  id {id}, name TEXT NOT NULL, owner TEXT NOT NULL, shares DOUBLE PRECISION NOT NULL, created_us BIGINT NOT NULL,
  jobs BIGINT NOT NULL DEFAULT 0, events BIGINT NOT NULL DEFAULT 0,
  events_done BIGINT NOT NULL DEFAULT 0, events_failed BIGINT NOT NULL DEFAULT 0,
  payloads BIGINT NOT NULL DEFAULT 0, wall_us BIGINT NOT NULL DEFAULT 0, setup_us BIGINT NOT NULL DEFAULT 0,
  user_us BIGINT NOT NULL DEFAULT 0, system_us BIGINT NOT NULL DEFAULT 0, rss_kb BIGINT NOT NULL DEFAULT 0,
  read_bytes BIGINT NOT NULL DEFAULT 0, write_bytes BIGINT NOT NULL DEFAULT 0,
  used_core_s DOUBLE PRECISION NOT NULL DEFAULT 0, used_at_us BIGINT NOT NULL DEFAULT 0,
  first_started_us BIGINT, last_ended_us BIGINT, batch BIGINT NOT NULL DEFAULT 0,
  events_canceled BIGINT NOT NULL DEFAULT 0, UNIQUE (name, owner)
);
CREATE INDEX campaigns_owner ON campaigns (owner, id);
CREATE INDEX campaigns_ended ON campaigns (last_ended_us, id) WHERE last_ended_us IS NOT NULL;
CREATE INDEX campaigns_batch ON campaigns (batch) WHERE batch > 0;

-- The text of a spec without name, priority and events, which stand in the job's row: stored once, however many jobs share it,
-- and gone with its last job. `shortened`: its jobs were canceled before they ran, and cannot be retried any more.
CREATE TABLE specs (id {id}, hash {bytes} NOT NULL UNIQUE, body {bytes} NOT NULL, shortened SMALLINT NOT NULL DEFAULT 0);

-- Jobs that any site treats alike: same campaign, application, resources, width, home and data. 0 and '' = the application's
-- figure, or none. `data`: datasets, as JSON.
CREATE TABLE kinds (
  id {key}, campaign BIGINT NOT NULL, app TEXT NOT NULL, cores BIGINT NOT NULL, memory_mb BIGINT NOT NULL,
  devices TEXT NOT NULL, nodes BIGINT NOT NULL, ranks BIGINT NOT NULL, home BIGINT NOT NULL DEFAULT 0, data TEXT NOT NULL DEFAULT '',
  UNIQUE (campaign, app, cores, memory_mb, devices, nodes, ranks, home, data)
);
CREATE INDEX kinds_app ON kinds (app, id);

-- Number of jobs by kind, state and site: the sums of every page, and which index ranges a filtered page has to visit.
CREATE TABLE counts (
  kind BIGINT NOT NULL, state SMALLINT NOT NULL, site BIGINT NOT NULL, jobs BIGINT NOT NULL,
  PRIMARY KEY (kind, state, site)
) {clustered};
CREATE INDEX counts_state ON counts (state, site, kind);

-- Fields are explained at `StoredJob`. A job in ward 3 that no site has bound has `place` -3. Intervals of events are text.
CREATE TABLE jobs (
  id {key}, kind BIGINT NOT NULL, spec BIGINT NOT NULL, state SMALLINT NOT NULL, site BIGINT NOT NULL,
  pin BIGINT NOT NULL, place BIGINT NOT NULL, home SMALLINT NOT NULL DEFAULT 0, ready SMALLINT NOT NULL, rank BIGINT NOT NULL,
  events BIGINT NOT NULL, n_done BIGINT NOT NULL DEFAULT 0, n_failed BIGINT NOT NULL DEFAULT 0,
  n_leased BIGINT NOT NULL DEFAULT 0, done TEXT NOT NULL DEFAULT '', failed TEXT NOT NULL DEFAULT '',
  leased TEXT NOT NULL DEFAULT '', seed_base BIGINT NOT NULL, created_us BIGINT NOT NULL, started_us BIGINT, ended_us BIGINT,
  reason TEXT NOT NULL DEFAULT '', name TEXT NOT NULL, blocked BIGINT NOT NULL, attempts BIGINT NOT NULL DEFAULT 0,
  refusals BIGINT NOT NULL DEFAULT 0, refused TEXT NOT NULL DEFAULT '', evidences BIGINT NOT NULL DEFAULT 0,
  delivering SMALLINT NOT NULL DEFAULT 0, outputs SMALLINT NOT NULL DEFAULT 0, told BIGINT NOT NULL DEFAULT 0,
  usage TEXT NOT NULL DEFAULT '', kept SMALLINT NOT NULL DEFAULT 0, delivered TEXT NOT NULL DEFAULT '',
  sent TEXT NOT NULL DEFAULT '', deliveries BIGINT NOT NULL DEFAULT 0, ends SMALLINT NOT NULL DEFAULT 0,
  ward BIGINT NOT NULL DEFAULT 0, moves BIGINT NOT NULL DEFAULT 0, waits_us BIGINT NOT NULL DEFAULT 0,
  n_canceled BIGINT NOT NULL DEFAULT 0, canceled TEXT NOT NULL DEFAULT ''
) {hot};
CREATE INDEX jobs_page ON jobs (kind, state, site, id);
CREATE INDEX jobs_ready ON jobs (kind, place, rank, id) WHERE ready = 1;
-- By the beginning of a name, whatever the database's collation.
CREATE INDEX jobs_name ON jobs (name {binary}, id) WHERE name <> '';
CREATE INDEX jobs_ended ON jobs (ended_us, id) WHERE ended_us IS NOT NULL;
CREATE INDEX jobs_spec ON jobs (spec);
CREATE INDEX jobs_kept ON jobs (kind, id) WHERE kept = 1;

CREATE TABLE deps (
  job BIGINT NOT NULL, on_job BIGINT NOT NULL, on_campaign BIGINT NOT NULL, upto BIGINT NOT NULL,
  PRIMARY KEY (job, on_job, on_campaign)
) {clustered};
CREATE INDEX deps_job ON deps (on_job);
CREATE INDEX deps_campaign ON deps (on_campaign);

-- Campaigns whose delivered files jobs need, so that these stay until the jobs have ended.
CREATE TABLE needs (campaign BIGINT NOT NULL, job BIGINT NOT NULL, PRIMARY KEY (campaign, job)) {clustered};
CREATE INDEX needs_job ON needs (job);

-- ---- requests of submitters ----

-- The key of a submission is its owner's. With whose credential it came; forgotten with the audit log's lines.
CREATE TABLE submits (
  owner TEXT NOT NULL, key TEXT NOT NULL, digest {bytes} NOT NULL, campaign TEXT NOT NULL, first_job BIGINT NOT NULL,
  count BIGINT NOT NULL, subject TEXT NOT NULL DEFAULT '', credential TEXT NOT NULL DEFAULT '', remark TEXT NOT NULL DEFAULT '',
  at_us BIGINT NOT NULL DEFAULT 0, PRIMARY KEY (owner, key)
);
CREATE INDEX submits_first ON submits (first_job);
CREATE INDEX submits_at ON submits (at_us);

-- The answer to a cancel or retry that came with a key, so that it counts once; forgotten after a month.
CREATE TABLE acts (
  key TEXT PRIMARY KEY, digest {bytes} NOT NULL, changed BIGINT NOT NULL, unchanged BIGINT NOT NULL, at_us BIGINT NOT NULL
);
CREATE INDEX acts_at ON acts (at_us);

-- The use of each owner, for the fair share between them; all start equal. Operators give their weights.
CREATE TABLE owners (
  name TEXT PRIMARY KEY, shares DOUBLE PRECISION NOT NULL DEFAULT 1, used_core_s DOUBLE PRECISION NOT NULL DEFAULT 0,
  used_at_us BIGINT NOT NULL DEFAULT 0
);
-- What quotas count.
CREATE TABLE stored (owner TEXT PRIMARY KEY, bytes BIGINT NOT NULL);

-- ---- sites, and the work that they have ----

-- `drained`: an operator has stopped its leases. `named_by`: who named a site that never joined.
CREATE TABLE sites (
  id {id}, name TEXT NOT NULL UNIQUE, epoch BIGINT NOT NULL DEFAULT 0, host TEXT NOT NULL DEFAULT '',
  version TEXT NOT NULL DEFAULT '', acked BIGINT NOT NULL DEFAULT 0, ordered BIGINT NOT NULL DEFAULT 0,
  seen_us BIGINT NOT NULL DEFAULT 0, lost SMALLINT NOT NULL DEFAULT 0,
  capacity TEXT NOT NULL DEFAULT '', allocations TEXT NOT NULL DEFAULT '{}', offers TEXT NOT NULL DEFAULT '[]',
  drained SMALLINT NOT NULL DEFAULT 0, drain_reason TEXT NOT NULL DEFAULT '', named_by TEXT NOT NULL DEFAULT ''
);

CREATE TABLE leases (
  job BIGINT NOT NULL, lease BIGINT NOT NULL, site BIGINT NOT NULL, first BIGINT NOT NULL, count BIGINT NOT NULL,
  state SMALLINT NOT NULL, leased_us BIGINT NOT NULL, ended_us BIGINT, reason TEXT NOT NULL DEFAULT '',
  cores BIGINT NOT NULL, event_s DOUBLE PRECISION NOT NULL, part TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (job, lease)
) {clustered} {hot};

-- Orders that a site has not acknowledged, in batches as they were made.
CREATE TABLE orders (
  site BIGINT NOT NULL, first BIGINT NOT NULL, last BIGINT NOT NULL, body {bytes} NOT NULL, PRIMARY KEY (site, first)
);

-- Kept events whose outputs lie at a site that was lost: taken back if it returns before another site has the job.
CREATE TABLE lost_results (site BIGINT NOT NULL, job BIGINT NOT NULL, done TEXT NOT NULL, PRIMARY KEY (site, job));

-- What a site shows: nodes by minutes, pruned after a month, and the latest of everything else.
CREATE TABLE tides (
  site BIGINT NOT NULL, minute BIGINT NOT NULL, regular DOUBLE PRECISION NOT NULL, ours DOUBLE PRECISION NOT NULL,
  idle DOUBLE PRECISION NOT NULL, away DOUBLE PRECISION NOT NULL, PRIMARY KEY (site, minute)
) {clustered};
CREATE TABLE site_views (site {key}, at_us BIGINT NOT NULL, body {bytes} NOT NULL);

-- Since when a site's application is what it is.
CREATE TABLE approved (
  site BIGINT NOT NULL, app TEXT NOT NULL, since_us BIGINT NOT NULL, version TEXT NOT NULL, digest TEXT NOT NULL,
  PRIMARY KEY (site, app, since_us)
) {clustered};

-- Requests for a payload's stdout and stderr; bounded, the oldest are pruned.
CREATE TABLE log_requests (
  id {id}, job BIGINT NOT NULL, event BIGINT, site BIGINT NOT NULL, answered SMALLINT NOT NULL DEFAULT 0,
  found SMALLINT NOT NULL DEFAULT 0, stdout {bytes}, stderr {bytes}
);

-- ---- allocations ----

CREATE TABLE allocations (
  site BIGINT NOT NULL, name TEXT NOT NULL, batch_id TEXT NOT NULL, state TEXT NOT NULL, nodes BIGINT NOT NULL,
  cores BIGINT NOT NULL, at_us BIGINT NOT NULL, reason TEXT NOT NULL, busy_us BIGINT NOT NULL, slot_us BIGINT NOT NULL,
  PRIMARY KEY (site, name)
);
CREATE INDEX allocations_newest ON allocations (site, at_us);
-- Allocations of one state, and how many there are of each.
CREATE INDEX allocations_state ON allocations (site, state, at_us, nodes);

-- Allocations of the last year: on which nodes, when, and what they held by the batch system's count. `hosts`: names with a
-- blank before and behind each.
CREATE TABLE placements (
  site BIGINT NOT NULL, name TEXT NOT NULL, batch_id TEXT NOT NULL, hosts TEXT NOT NULL, started_us BIGINT NOT NULL,
  ended_us BIGINT NOT NULL, at_us BIGINT NOT NULL, held_cores BIGINT NOT NULL DEFAULT 0, held_gpus BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (site, name)
) {clustered};
CREATE INDEX placements_batch ON placements (batch_id);
CREATE INDEX placements_started ON placements (started_us);

-- The records of an allocation's pilots: jobs and events, as they came with each sync.
CREATE TABLE ran (id {id}, site BIGINT NOT NULL, allocation TEXT NOT NULL, at_us BIGINT NOT NULL, body {bytes} NOT NULL);
CREATE INDEX ran_allocation ON ran (site, allocation);
CREATE INDEX ran_at ON ran (at_us);

-- What payloads of each campaign and application used of an allocation.
CREATE TABLE core_use (
  site BIGINT NOT NULL, allocation TEXT NOT NULL, owner TEXT NOT NULL, campaign TEXT NOT NULL, app TEXT NOT NULL,
  core_us BIGINT NOT NULL, at_us BIGINT NOT NULL, PRIMARY KEY (site, allocation, owner, campaign, app)
) {clustered};
CREATE INDEX core_use_at ON core_use (at_us);
-- The core-hours of one submitter are found without reading those of all.
CREATE INDEX core_use_owner ON core_use (owner, site, allocation);

-- ---- results ----

-- State changes, in batches as they were committed; the oldest are pruned. `campaign`: whose they are, so that a follower of
-- one campaign reads no others.
CREATE TABLE changes (first {key}, last BIGINT NOT NULL, body {bytes} NOT NULL, campaign BIGINT NOT NULL);
CREATE INDEX changes_campaign ON changes (campaign, first);

CREATE TABLE failures (
  id {id}, job BIGINT NOT NULL, campaign BIGINT NOT NULL, first BIGINT NOT NULL, count BIGINT NOT NULL, event BIGINT,
  site BIGINT NOT NULL, final SMALLINT NOT NULL, evidence {bytes} NOT NULL
);
CREATE INDEX failures_job ON failures (job, id);
CREATE INDEX failures_campaign ON failures (campaign, id);
CREATE TABLE failure_counts (
  campaign BIGINT NOT NULL, class TEXT NOT NULL, failures BIGINT NOT NULL, PRIMARY KEY (campaign, class)
);

CREATE TABLE outputs (
  job BIGINT NOT NULL, number BIGINT NOT NULL, campaign BIGINT NOT NULL, name TEXT NOT NULL, url TEXT NOT NULL,
  size_bytes BIGINT NOT NULL, sha256 TEXT NOT NULL, events TEXT NOT NULL DEFAULT '', PRIMARY KEY (job, number)
);
CREATE INDEX outputs_campaign ON outputs (campaign, job, number);

-- Times of payloads of jobs that ask for it (`timed`), as they came with each sync; `count`: how many `body` holds.
CREATE TABLE payload_times (id {id}, job BIGINT NOT NULL, site BIGINT NOT NULL, at_us BIGINT NOT NULL, count BIGINT NOT NULL, body {bytes} NOT NULL);
CREATE INDEX payload_times_job ON payload_times (job, id);
CREATE INDEX payload_times_at ON payload_times (at_us);

-- What ran when: of campaigns (job = 0) and of their larger jobs, in intervals of a power of two seconds (`step_s`). Bounded rows of each.
CREATE TABLE activity (campaign BIGINT NOT NULL, job BIGINT NOT NULL, at BIGINT NOT NULL, done BIGINT NOT NULL, failed BIGINT NOT NULL, busy_us BIGINT NOT NULL, cpu_us BIGINT NOT NULL, longest_us BIGINT NOT NULL, PRIMARY KEY (campaign, job, at));
CREATE TABLE activity_steps (campaign BIGINT NOT NULL, job BIGINT NOT NULL, step_s BIGINT NOT NULL, lines BIGINT NOT NULL, PRIMARY KEY (campaign, job));

-- ---- running sums and the archive ----

-- Running sums of everything there ever was, in the database or in the archive: pages and metrics read no history.
-- Names: campaigns, jobs, events, events_done, events_failed; state/STATE; site/SITE/STATE and failures/CLASS (of all only).
CREATE TABLE totals (name TEXT PRIMARY KEY, value BIGINT NOT NULL) {hot};
CREATE TABLE owner_totals (owner TEXT NOT NULL, name TEXT NOT NULL, value BIGINT NOT NULL, PRIMARY KEY (owner, name)) {clustered} {hot};

-- Campaigns that have left the database, with the sums that accounting needs: kept for ever. `states`, `failures`: JSON.
CREATE TABLE archived_campaigns (
  id {key}, batch BIGINT NOT NULL, name TEXT NOT NULL, owner TEXT NOT NULL, shares DOUBLE PRECISION NOT NULL,
  created_us BIGINT NOT NULL, jobs BIGINT NOT NULL, events BIGINT NOT NULL, events_done BIGINT NOT NULL,
  events_failed BIGINT NOT NULL, payloads BIGINT NOT NULL, wall_us BIGINT NOT NULL, setup_us BIGINT NOT NULL,
  user_us BIGINT NOT NULL, system_us BIGINT NOT NULL, rss_kb BIGINT NOT NULL, read_bytes BIGINT NOT NULL,
  write_bytes BIGINT NOT NULL, first_started_us BIGINT, last_ended_us BIGINT, states TEXT NOT NULL, failures TEXT NOT NULL,
  events_canceled BIGINT NOT NULL DEFAULT 0, UNIQUE (name, owner)
);
CREATE INDEX archived_campaigns_owner ON archived_campaigns (owner, id);
CREATE INDEX archived_campaigns_batch ON archived_campaigns (batch);
-- Which jobs were whose: ranges of numbers.
CREATE TABLE archived_jobs (first {key}, last BIGINT NOT NULL, campaign BIGINT NOT NULL);
CREATE INDEX archived_jobs_campaign ON archived_jobs (campaign);
-- What is archived together. phase: 0 chosen, 1 its files are complete, 2 it has left the database.
CREATE TABLE archive_batches (
  id {key}, month TEXT NOT NULL, phase SMALLINT NOT NULL, campaigns BIGINT NOT NULL, jobs BIGINT NOT NULL, at_us BIGINT NOT NULL
);
CREATE INDEX archive_batches_open ON archive_batches (id) WHERE phase < 2;

-- ---- the hospital: jobs that belong to a site and may be treated at others ----

CREATE TABLE wards (id {id}, name TEXT NOT NULL UNIQUE);

-- Each stay of a job in a ward. outcome: 0 there now, 1 cured, 2 ended without success, 3 canceled, 4 went home.
CREATE TABLE stays (
  job BIGINT NOT NULL, number BIGINT NOT NULL, ward BIGINT NOT NULL, cure TEXT NOT NULL, why TEXT NOT NULL,
  admitted_us BIGINT NOT NULL, outcome SMALLINT NOT NULL DEFAULT 0, site BIGINT NOT NULL DEFAULT 0, ended_us BIGINT,
  PRIMARY KEY (job, number)
) {clustered};

-- What each source of downtimes said last, and the sites that are down now: until when, and why.
CREATE TABLE calendars (source TEXT PRIMARY KEY, read_us BIGINT NOT NULL, error TEXT NOT NULL, body {bytes} NOT NULL);
CREATE TABLE down_sites (site {key}, until_us BIGINT NOT NULL, reason TEXT NOT NULL);

-- ---- notifications and the audit log ----

-- Who is notified about a campaign, what is gathered for notices, and the messages to send.
CREATE TABLE subscriptions (
  campaign BIGINT NOT NULL, target TEXT NOT NULL, sites SMALLINT NOT NULL, wants {bytes} NOT NULL,
  PRIMARY KEY (campaign, target)
) {clustered};

-- first_us 0: nothing to send now, the row remembers what was sent.
CREATE TABLE notices (
  target TEXT NOT NULL, subject TEXT NOT NULL, what TEXT NOT NULL, first_us BIGINT NOT NULL, last_us BIGINT NOT NULL,
  body {bytes} NOT NULL, PRIMARY KEY (target, subject, what)
) {clustered};

-- state: 0 waits, 1 sent, 2 given up.
CREATE TABLE outbox (
  id {id}, channel TEXT NOT NULL, target TEXT NOT NULL, made_us BIGINT NOT NULL, ended_us BIGINT, state SMALLINT NOT NULL,
  error TEXT NOT NULL DEFAULT '', body {bytes} NOT NULL
);
CREATE INDEX outbox_waiting ON outbox (channel, id) WHERE state = 0;
CREATE INDEX outbox_made ON outbox (made_us);

-- Changes on their way into the audit log, numbered; gone once it holds them.
CREATE TABLE audit_pending (id {key}, at_us BIGINT NOT NULL, body {bytes} NOT NULL);
