-- The first schema. {id}, {bytes}, {clustered} and {hot} are spelled for each database by queries.py.
-- Codes of states: 0 WAITING, 1 RUNNING, 2 COMPLETED, 3 PARTIAL, 4 FAILED, 5 CANCELED (jobs);
-- 0 ACTIVE, 1 SETTLED, 2 RELEASED, 3 LOST (leases). Site 0 and place 0 mean none.

CREATE TABLE meta (name TEXT PRIMARY KEY, value BIGINT NOT NULL);
INSERT INTO meta (name, value) VALUES ('next_job', 1), ('next_lease', 1), ('next_change', 1);

CREATE TABLE campaigns (
  id {id}, name TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, shares DOUBLE PRECISION NOT NULL, created_us BIGINT NOT NULL,
  jobs BIGINT NOT NULL DEFAULT 0, events BIGINT NOT NULL DEFAULT 0,
  events_done BIGINT NOT NULL DEFAULT 0, events_failed BIGINT NOT NULL DEFAULT 0,
  payloads BIGINT NOT NULL DEFAULT 0, wall_us BIGINT NOT NULL DEFAULT 0, setup_us BIGINT NOT NULL DEFAULT 0,
  user_us BIGINT NOT NULL DEFAULT 0, system_us BIGINT NOT NULL DEFAULT 0, rss_kb BIGINT NOT NULL DEFAULT 0,
  read_bytes BIGINT NOT NULL DEFAULT 0, write_bytes BIGINT NOT NULL DEFAULT 0,
  used_core_s DOUBLE PRECISION NOT NULL DEFAULT 0, used_at_us BIGINT NOT NULL DEFAULT 0,
  first_started_us BIGINT, last_ended_us BIGINT
);

-- The text of a spec without name, priority and events, which stand in the job's row: stored once, however many jobs share it.
CREATE TABLE specs (id {id}, hash {bytes} NOT NULL UNIQUE, body {bytes} NOT NULL);

-- Jobs that any site treats alike: same campaign, application and resources. 0 and '' = the application's figure.
CREATE TABLE kinds (
  id {id}, campaign BIGINT NOT NULL, app TEXT NOT NULL, cores BIGINT NOT NULL, memory_mb BIGINT NOT NULL,
  devices TEXT NOT NULL, UNIQUE (campaign, app, cores, memory_mb, devices)
);

-- Number of jobs by kind, state and site: the sums of every page, and which index ranges a filtered page has to visit.
CREATE TABLE counts (
  kind BIGINT NOT NULL, state SMALLINT NOT NULL, site BIGINT NOT NULL, jobs BIGINT NOT NULL,
  PRIMARY KEY (kind, state, site)
) {clustered};

CREATE TABLE jobs (
  id {key}, kind BIGINT NOT NULL, spec BIGINT NOT NULL, state SMALLINT NOT NULL, site BIGINT NOT NULL,
  pin BIGINT NOT NULL, place BIGINT NOT NULL, home SMALLINT NOT NULL DEFAULT 0, ready SMALLINT NOT NULL, rank BIGINT NOT NULL,
  events BIGINT NOT NULL, n_done BIGINT NOT NULL DEFAULT 0, n_failed BIGINT NOT NULL DEFAULT 0,
  n_leased BIGINT NOT NULL DEFAULT 0, done TEXT NOT NULL DEFAULT '', failed TEXT NOT NULL DEFAULT '',
  leased TEXT NOT NULL DEFAULT '', seed_base BIGINT NOT NULL, created_us BIGINT NOT NULL, started_us BIGINT, ended_us BIGINT,
  reason TEXT NOT NULL DEFAULT '', name TEXT NOT NULL, blocked BIGINT NOT NULL, attempts BIGINT NOT NULL DEFAULT 0,
  refusals BIGINT NOT NULL DEFAULT 0, refused TEXT NOT NULL DEFAULT '', evidences BIGINT NOT NULL DEFAULT 0,
  delivering SMALLINT NOT NULL DEFAULT 0, outputs SMALLINT NOT NULL DEFAULT 0, told BIGINT NOT NULL DEFAULT 0,
  usage TEXT NOT NULL DEFAULT ''
) {hot};
CREATE INDEX jobs_page ON jobs (kind, state, site, id);
CREATE INDEX jobs_ready ON jobs (kind, place, rank, id) WHERE ready = 1;
CREATE INDEX jobs_name ON jobs (name, id) WHERE name <> '';

CREATE TABLE leases (
  job BIGINT NOT NULL, lease BIGINT NOT NULL, site BIGINT NOT NULL, first BIGINT NOT NULL, count BIGINT NOT NULL,
  state SMALLINT NOT NULL, leased_us BIGINT NOT NULL, ended_us BIGINT, reason TEXT NOT NULL DEFAULT '',
  cores BIGINT NOT NULL, event_s DOUBLE PRECISION NOT NULL, part TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (job, lease)
) {clustered} {hot};

CREATE TABLE deps (
  job BIGINT NOT NULL, on_job BIGINT NOT NULL, on_campaign BIGINT NOT NULL, upto BIGINT NOT NULL,
  PRIMARY KEY (job, on_job, on_campaign)
) {clustered};
CREATE INDEX deps_job ON deps (on_job);
CREATE INDEX deps_campaign ON deps (on_campaign);

CREATE TABLE submits (
  key TEXT PRIMARY KEY, digest {bytes} NOT NULL, campaign TEXT NOT NULL, first_job BIGINT NOT NULL, count BIGINT NOT NULL
);

CREATE TABLE sites (
  id {id}, name TEXT NOT NULL UNIQUE, epoch BIGINT NOT NULL DEFAULT 0, host TEXT NOT NULL DEFAULT '',
  version TEXT NOT NULL DEFAULT '', acked BIGINT NOT NULL DEFAULT 0, ordered BIGINT NOT NULL DEFAULT 0,
  seen_us BIGINT NOT NULL DEFAULT 0, lost SMALLINT NOT NULL DEFAULT 0,
  capacity TEXT NOT NULL DEFAULT '', allocations TEXT NOT NULL DEFAULT '{}', offers TEXT NOT NULL DEFAULT '[]'
);

-- Orders that a site has not acknowledged, in batches as they were made.
CREATE TABLE orders (
  site BIGINT NOT NULL, first BIGINT NOT NULL, last BIGINT NOT NULL, body {bytes} NOT NULL, PRIMARY KEY (site, first)
);

-- State changes, in batches as they were committed; the oldest are pruned.
CREATE TABLE changes (first {key}, last BIGINT NOT NULL, body {bytes} NOT NULL);

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
  size_bytes BIGINT NOT NULL, sha256 TEXT NOT NULL, PRIMARY KEY (job, number)
);
CREATE INDEX outputs_campaign ON outputs (campaign, job, number);

CREATE TABLE allocations (
  site BIGINT NOT NULL, name TEXT NOT NULL, batch_id TEXT NOT NULL, state TEXT NOT NULL, nodes BIGINT NOT NULL,
  cores BIGINT NOT NULL, at_us BIGINT NOT NULL, reason TEXT NOT NULL, busy_us BIGINT NOT NULL, slot_us BIGINT NOT NULL,
  PRIMARY KEY (site, name)
);
CREATE INDEX allocations_newest ON allocations (site, at_us);

-- Requests for a payload's stdout and stderr; bounded, the oldest are pruned.
CREATE TABLE log_requests (
  id {id}, job BIGINT NOT NULL, event BIGINT, site BIGINT NOT NULL, answered SMALLINT NOT NULL DEFAULT 0,
  found SMALLINT NOT NULL DEFAULT 0, stdout {bytes}, stderr {bytes}
);

-- Kept events whose outputs lie at a site that was lost: taken back if it returns before another site has the job.
CREATE TABLE lost_results (site BIGINT NOT NULL, job BIGINT NOT NULL, done TEXT NOT NULL, PRIMARY KEY (site, job));
