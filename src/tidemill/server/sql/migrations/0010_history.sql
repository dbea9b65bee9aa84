-- Running sums of everything there ever was, in the database or in the archive: pages and metrics read no history.
-- Names: campaigns, jobs, events, events_done, events_failed; state/STATE; site/SITE/STATE and failures/CLASS (of all only).
CREATE TABLE totals (name TEXT PRIMARY KEY, value BIGINT NOT NULL) {hot};
CREATE TABLE owner_totals (owner TEXT NOT NULL, name TEXT NOT NULL, value BIGINT NOT NULL, PRIMARY KEY (owner, name)) {clustered} {hot};
DELETE FROM counts WHERE jobs = 0;
INSERT INTO owner_totals (owner, name, value) SELECT owner, 'campaigns', COUNT(*) FROM campaigns GROUP BY owner;
INSERT INTO owner_totals (owner, name, value) SELECT owner, 'jobs', SUM(jobs) FROM campaigns GROUP BY owner;
INSERT INTO owner_totals (owner, name, value) SELECT owner, 'events', SUM(events) FROM campaigns GROUP BY owner;
INSERT INTO owner_totals (owner, name, value) SELECT owner, 'events_done', SUM(events_done) FROM campaigns GROUP BY owner;
INSERT INTO owner_totals (owner, name, value) SELECT owner, 'events_failed', SUM(events_failed) FROM campaigns GROUP BY owner;
INSERT INTO owner_totals (owner, name, value)
SELECT campaigns.owner, 'state/' || counts.state, SUM(counts.jobs) FROM counts JOIN kinds ON kinds.id = counts.kind
JOIN campaigns ON campaigns.id = kinds.campaign GROUP BY campaigns.owner, counts.state;
INSERT INTO totals (name, value) SELECT name, SUM(value) FROM owner_totals GROUP BY name;
INSERT INTO totals (name, value) SELECT 'site/' || site || '/' || state, SUM(jobs) FROM counts WHERE site > 0 GROUP BY site, state;
INSERT INTO totals (name, value) SELECT 'failures/' || class, SUM(failures) FROM failure_counts GROUP BY class;

-- What is asked of kinds, counters and campaigns without naming a campaign.
CREATE INDEX counts_state ON counts (state, site, kind);
CREATE INDEX kinds_app ON kinds (app, id);
CREATE INDEX campaigns_ended ON campaigns (last_ended_us, id) WHERE last_ended_us IS NOT NULL;

-- Campaigns that have left the database, with the sums that accounting needs: kept for ever. `states`, `failures`: JSON.
CREATE TABLE archived_campaigns (
  id {key}, batch BIGINT NOT NULL, name TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, shares DOUBLE PRECISION NOT NULL,
  created_us BIGINT NOT NULL, jobs BIGINT NOT NULL, events BIGINT NOT NULL, events_done BIGINT NOT NULL,
  events_failed BIGINT NOT NULL, payloads BIGINT NOT NULL, wall_us BIGINT NOT NULL, setup_us BIGINT NOT NULL,
  user_us BIGINT NOT NULL, system_us BIGINT NOT NULL, rss_kb BIGINT NOT NULL, read_bytes BIGINT NOT NULL,
  write_bytes BIGINT NOT NULL, first_started_us BIGINT, last_ended_us BIGINT, states TEXT NOT NULL, failures TEXT NOT NULL
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
-- The batch in which a campaign leaves; 0 = it stays. From then on nothing of it changes.
ALTER TABLE campaigns ADD COLUMN batch BIGINT NOT NULL DEFAULT 0;
CREATE INDEX campaigns_batch ON campaigns (batch) WHERE batch > 0;

-- Campaigns whose delivered files jobs need, so that these stay until the jobs have ended.
CREATE TABLE needs (campaign BIGINT NOT NULL, job BIGINT NOT NULL, PRIMARY KEY (campaign, job)) {clustered};
CREATE INDEX needs_job ON needs (job);

-- A specification goes with its last job. Its number is not used again: readers remember specifications by it.
CREATE INDEX jobs_spec ON jobs (spec);
INSERT INTO meta (name, value) SELECT 'next_spec', COALESCE(MAX(id), 0) + 1 FROM specs;

-- Keys of submissions are forgotten with the audit log's lines.
ALTER TABLE submits ADD COLUMN at_us BIGINT NOT NULL DEFAULT 0;
UPDATE submits SET at_us = COALESCE((SELECT created_us FROM jobs WHERE jobs.id = submits.first_job), 0);
CREATE INDEX submits_at ON submits (at_us);
