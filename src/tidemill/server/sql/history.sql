-- name: totals
-- Sums over everything there ever was.
SELECT name, value FROM totals;

-- name: totals_of_owner
-- Sums over everything that an owner ever had.
SELECT name, value FROM owner_totals WHERE owner = :owner;

-- name: add_totals many(name text, value bigint)
-- Something was added to the sums.
INSERT INTO totals (name, value) SELECT v.name, v.value FROM v WHERE true
ON CONFLICT (name) DO UPDATE SET value = totals.value + excluded.value;

-- name: add_owner_totals many(owner text, name text, value bigint)
-- The same for owners.
INSERT INTO owner_totals (owner, name, value) SELECT v.owner, v.name, v.value FROM v WHERE true
ON CONFLICT (owner, name) DO UPDATE SET value = owner_totals.value + excluded.value;

-- name: archivable
-- Campaigns whose last job ended before a time and that may leave, the oldest first, after a place in that order.
SELECT id, last_ended_us, jobs, name FROM campaigns WHERE last_ended_us < :before AND (last_ended_us, id) > (:after_us, :after) AND batch = 0
AND NOT EXISTS (SELECT 1 FROM kinds JOIN counts ON counts.kind = kinds.id WHERE kinds.campaign = campaigns.id AND counts.state <= 1 AND counts.jobs > 0)
ORDER BY last_ended_us, id LIMIT :limit;

-- name: wanted_campaigns
-- Which of these campaigns have files that jobs of others need, or may need again: those that have not ended, and those that can be retried.
SELECT DISTINCT needs.campaign FROM needs JOIN jobs ON jobs.id = needs.job JOIN kinds ON kinds.id = jobs.kind
WHERE needs.campaign {in:ids} AND kinds.campaign <> needs.campaign AND (jobs.state <= 1 OR (jobs.state <> 2 AND jobs.ended_us >= :before));

-- name: undelivered_campaigns
-- Which of these campaigns have a job whose outputs a site keeps undelivered. Reads nothing of other jobs.
SELECT DISTINCT kinds.campaign FROM kinds JOIN jobs ON jobs.kind = kinds.id WHERE kinds.campaign {in:ids} AND jobs.kept = 1;

-- name: open_campaigns
-- Which of these campaigns have jobs that have not ended.
SELECT DISTINCT kinds.campaign FROM kinds JOIN counts ON counts.kind = kinds.id WHERE kinds.campaign {in:ids} AND counts.state <= 1 AND counts.jobs > 0;

-- name: close_campaigns
-- These campaigns leave with a batch.
UPDATE campaigns SET batch = :batch WHERE id {in:ids};

-- name: insert_batch
-- A batch is chosen.
INSERT INTO archive_batches (id, month, phase, campaigns, jobs, at_us) SELECT COALESCE(MAX(id), 0) + 1, :month, 0, :campaigns, :jobs, :at_us FROM archive_batches RETURNING id;

-- name: open_batch
-- The batch that is not finished.
SELECT id, month, phase, campaigns, jobs FROM archive_batches WHERE phase < 2 ORDER BY id LIMIT 1;

-- name: set_batch_phase
-- A batch has come further.
UPDATE archive_batches SET phase = :phase, at_us = :at_us WHERE id = :id;

-- name: left_of_batch
-- Whether something of a batch has left the database.
SELECT 1 AS found FROM archived_campaigns WHERE batch = :batch
UNION ALL SELECT 1 FROM archived_jobs JOIN campaigns ON campaigns.id = archived_jobs.campaign WHERE campaigns.batch = :batch AND campaigns.batch > 0 LIMIT 1;

-- name: campaigns_of_batch
-- Campaigns of a batch that are still in the database.
SELECT {StoredCampaign}
FROM campaigns WHERE batch = :batch AND batch > 0 AND id > :after ORDER BY id LIMIT :limit;

-- name: unarchived_campaigns
-- Campaigns of no batch.
SELECT {StoredCampaign}
FROM campaigns WHERE batch = 0 AND id > :after ORDER BY id LIMIT :limit;

-- name: failures_of_jobs
-- What failed in some jobs.
SELECT {StoredFailure} FROM failures WHERE job {in:ids} ORDER BY job, id;

-- name: remarks_of_jobs
-- What was remarked when these jobs were submitted.
SELECT first_job, count, remark FROM submits WHERE first_job <= :last AND first_job + count > :first AND remark <> '';

-- name: insert_archived_campaigns many(id bigint, batch bigint, name text, owner text, shares double precision, created_us bigint, jobs bigint, events bigint, events_done bigint, events_failed bigint, payloads bigint, wall_us bigint, setup_us bigint, user_us bigint, system_us bigint, rss_kb bigint, read_bytes bigint, write_bytes bigint, first_started_us bigint, last_ended_us bigint, states text, failures text, events_canceled bigint)
-- Campaigns that are in the archive.
INSERT INTO archived_campaigns (id, batch, name, owner, shares, created_us, jobs, events, events_done, events_failed, payloads, wall_us, setup_us, user_us, system_us, rss_kb, read_bytes, write_bytes, first_started_us, last_ended_us, states, failures, events_canceled)
SELECT v.id, v.batch, v.name, v.owner, v.shares, v.created_us, v.jobs, v.events, v.events_done, v.events_failed, v.payloads, v.wall_us, v.setup_us, v.user_us, v.system_us, v.rss_kb, v.read_bytes, v.write_bytes, v.first_started_us, v.last_ended_us, v.states, v.failures, v.events_canceled FROM v;

-- name: insert_archived_jobs many(first bigint, last bigint, campaign bigint)
-- Jobs that are in the archive.
INSERT INTO archived_jobs (first, last, campaign) SELECT v.first, v.last, v.campaign FROM v;

-- name: archived_owners [sqlite]
-- Whose archived jobs these are (JSON).
SELECT asked.value AS job, COALESCE((SELECT owner FROM archived_campaigns WHERE id = archived_jobs.campaign), (SELECT owner FROM campaigns WHERE id = archived_jobs.campaign)) AS owner
FROM json_each(:jobs) AS asked CROSS JOIN archived_jobs ON archived_jobs.first = (SELECT MAX(first) FROM archived_jobs WHERE first <= asked.value) WHERE archived_jobs.last >= asked.value;

-- name: archived_owners [postgresql]
-- Whose archived jobs these are (JSON).
SELECT asked.job, COALESCE((SELECT owner FROM archived_campaigns WHERE id = archived_jobs.campaign), (SELECT owner FROM campaigns WHERE id = archived_jobs.campaign)) AS owner
FROM (SELECT CAST(value AS bigint) AS job FROM jsonb_array_elements_text(CAST(:jobs AS jsonb))) AS asked
CROSS JOIN LATERAL (SELECT last, campaign FROM archived_jobs WHERE first <= asked.job ORDER BY first DESC LIMIT 1) AS archived_jobs WHERE archived_jobs.last >= asked.job;

-- name: archived_range
-- The range that may hold an archived job.
SELECT first, last, campaign FROM archived_jobs WHERE first <= :job ORDER BY first DESC LIMIT 1;

-- name: archived_ranges
-- Ranges of archived jobs of one owner or of all, the newest first.
SELECT archived_jobs.first, archived_jobs.last, archived_campaigns.batch, archive_batches.month FROM archived_jobs JOIN archived_campaigns ON archived_campaigns.id = archived_jobs.campaign JOIN archive_batches ON archive_batches.id = archived_campaigns.batch
WHERE archived_jobs.first < :before AND (:any_owner = 1 OR archived_campaigns.owner = :owner) ORDER BY archived_jobs.first DESC LIMIT :limit;

-- name: archived_ranges_of
-- Ranges of archived jobs of a campaign, the newest first.
SELECT first, last FROM archived_jobs WHERE campaign = :campaign AND first < :before ORDER BY first DESC LIMIT :limit;

-- name: archived_ranges_from
-- The same after a job, the oldest first.
SELECT first, last FROM archived_jobs WHERE campaign = :campaign AND last > :after ORDER BY first LIMIT :limit;

-- name: archived_campaign
-- One campaign of the archive.
SELECT {ArchivedCampaign}
FROM archived_campaigns WHERE id = :id;

-- name: archived_campaigns
-- Campaigns of the archive, newest first, of one owner or of all.
SELECT {ArchivedCampaign}
FROM archived_campaigns WHERE id < :before AND (:any_owner = 1 OR owner = :owner) ORDER BY id DESC LIMIT :limit;

-- name: closed_jobs
-- The first of these jobs whose campaign is on its way into the archive.
SELECT jobs.id, campaigns.name, campaigns.last_ended_us FROM jobs JOIN kinds ON kinds.id = jobs.kind JOIN campaigns ON campaigns.id = kinds.campaign WHERE jobs.id {in:ids} AND campaigns.batch > 0 ORDER BY jobs.id LIMIT 1;

-- name: delete_jobs_leases
-- Jobs leave the database: what belongs to them.
DELETE FROM leases WHERE job {in:ids};

-- name: delete_jobs_failures
-- The same.
DELETE FROM failures WHERE job {in:ids};

-- name: delete_jobs_outputs
-- The same.
DELETE FROM outputs WHERE job {in:ids};

-- name: delete_jobs_deps
-- The same.
DELETE FROM deps WHERE job {in:ids};

-- name: delete_jobs_needs
-- The same.
DELETE FROM needs WHERE job {in:ids};

-- name: delete_jobs_lost_results
-- The same.
DELETE FROM lost_results WHERE site IN (SELECT id FROM sites) AND job {in:ids};

-- name: delete_jobs
-- Jobs leave the database.
DELETE FROM jobs WHERE id {in:ids} RETURNING spec;

-- name: delete_specs
-- Specifications that no job has any more.
DELETE FROM specs WHERE id {in:ids} AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.spec = specs.id) RETURNING id, hash, LENGTH(body) AS length;

-- name: credit_stored
-- An owner's jobs have left the database.
UPDATE stored SET bytes = CASE WHEN bytes > :bytes THEN bytes - :bytes ELSE 0 END WHERE owner = :owner;

-- name: delete_campaign_counts
-- Campaigns leave the database: their counters.
DELETE FROM counts WHERE kind IN (SELECT id FROM kinds WHERE campaign {in:ids});

-- name: delete_campaign_kinds
-- The same: their kinds.
DELETE FROM kinds WHERE campaign {in:ids};

-- name: delete_campaign_failures
-- The same: their sums of failures.
DELETE FROM failure_counts WHERE campaign {in:ids};

-- name: delete_campaign_subscriptions
-- The same: who wanted to be notified.
DELETE FROM subscriptions WHERE campaign {in:ids};

-- name: delete_campaign_needs
-- The same: who needed their files.
DELETE FROM needs WHERE campaign {in:ids};

-- name: delete_campaigns
-- Campaigns leave the database.
DELETE FROM campaigns WHERE id {in:ids};

-- name: insert_needs many(campaign bigint, job bigint)
-- Jobs need delivered files of a campaign.
INSERT INTO needs (campaign, job) SELECT v.campaign, v.job FROM v WHERE true ON CONFLICT (campaign, job) DO NOTHING;

-- name: prune_submits
-- Keys that will not be used again, some at a time.
DELETE FROM submits WHERE first_job IN (SELECT first_job FROM submits WHERE at_us < :before ORDER BY at_us LIMIT :limit);

-- name: delete_idle_counts
-- Counters of open jobs that have come to nothing.
DELETE FROM counts WHERE kind {in:kinds} AND state <= 1 AND jobs = 0;

-- name: archived_place
-- Where a campaign is that is in the archive, or of which jobs are.
SELECT archive_batches.month, leaving.batch, leaving.id, leaving.name, leaving.owner, leaving.last_ended_us FROM (
  SELECT batch, id, name, owner, last_ended_us FROM archived_campaigns WHERE id = :id
  UNION ALL SELECT batch, id, name, owner, last_ended_us FROM campaigns WHERE id = :id AND batch > 0) AS leaving
JOIN archive_batches ON archive_batches.id = leaving.batch;

-- name: archived_place_of
-- Where a campaign is that is in the archive.
SELECT archive_batches.month, archived_campaigns.batch, archived_campaigns.id, archived_campaigns.name, archived_campaigns.owner, archived_campaigns.last_ended_us
FROM archived_campaigns JOIN archive_batches ON archive_batches.id = archived_campaigns.batch WHERE archived_campaigns.id = :id;

-- name: still_archivable
-- Which of these campaigns may leave, as far as their own rows say.
SELECT id, jobs FROM campaigns WHERE id {in:ids} AND batch = 0 AND last_ended_us < :before;

-- name: campaign_of_jobs
-- Numbers of the campaigns of jobs.
SELECT DISTINCT kinds.campaign FROM jobs JOIN kinds ON kinds.id = jobs.kind WHERE jobs.id {in:ids};

-- name: activity_steps
-- The length of a campaign's (job = 0) or job's intervals, and how many rows they may have by now.
SELECT step_s, lines FROM activity_steps WHERE campaign = :campaign AND job = :job;

-- name: set_activity_steps many(campaign bigint, job bigint, step_s bigint, lines bigint)
-- The same changes.
INSERT INTO activity_steps (campaign, job, step_s, lines) SELECT v.campaign, v.job, v.step_s, v.lines FROM v WHERE true
ON CONFLICT (campaign, job) DO UPDATE SET step_s = excluded.step_s, lines = excluded.lines;

-- name: add_activity many(campaign bigint, job bigint, at bigint, done bigint, failed bigint, busy_us bigint, cpu_us bigint, longest_us bigint)
-- Something more happened in an interval.
INSERT INTO activity (campaign, job, at, done, failed, busy_us, cpu_us, longest_us) SELECT v.campaign, v.job, v.at, v.done, v.failed, v.busy_us, v.cpu_us, v.longest_us FROM v WHERE true
ON CONFLICT (campaign, job, at) DO UPDATE SET done = CASE WHEN activity.done BETWEEN -2305843009213693952 AND 2305843009213693952 THEN activity.done + excluded.done ELSE activity.done END, failed = CASE WHEN activity.failed BETWEEN -2305843009213693952 AND 2305843009213693952 THEN activity.failed + excluded.failed ELSE activity.failed END, busy_us = CASE WHEN activity.busy_us BETWEEN -2305843009213693952 AND 2305843009213693952 THEN activity.busy_us + excluded.busy_us ELSE activity.busy_us END, cpu_us = CASE WHEN activity.cpu_us BETWEEN -2305843009213693952 AND 2305843009213693952 THEN activity.cpu_us + excluded.cpu_us ELSE activity.cpu_us END,
longest_us = CASE WHEN excluded.longest_us > activity.longest_us THEN excluded.longest_us ELSE activity.longest_us END;

-- name: activity_of
-- What happened in a campaign (job = 0) or job, by interval.
SELECT at, done, failed, busy_us, cpu_us, longest_us FROM activity WHERE campaign = :campaign AND job = :job ORDER BY at;

-- name: delete_activity
-- What happened in a campaign or job is written again in longer intervals.
DELETE FROM activity WHERE campaign = :campaign AND job = :job;

-- name: activity_of_campaign
-- What happened in a campaign and its larger jobs, with the lengths of the intervals.
SELECT activity.job, activity_steps.step_s, activity.at, activity.done, activity.failed, activity.busy_us, activity.cpu_us, activity.longest_us
FROM activity JOIN activity_steps ON activity_steps.campaign = activity.campaign AND activity_steps.job = activity.job WHERE activity.campaign = :campaign AND activity.job >= :first AND activity.job <= :last ORDER BY activity.job, activity.at;

-- name: active_jobs
-- The next jobs of a campaign of which is known what happened when; 0 is the campaign itself.
SELECT job FROM activity_steps WHERE campaign = :campaign AND job > :after ORDER BY job LIMIT :limit;

-- name: delete_campaign_activity
-- Campaigns leave the database: what happened in them.
DELETE FROM activity WHERE campaign {in:ids};

-- name: delete_campaign_activity_steps
-- The same.
DELETE FROM activity_steps WHERE campaign {in:ids};
