-- name: campaign_by_name
-- What submitting needs to know of a campaign.
SELECT id, events, shares, batch, last_ended_us FROM campaigns WHERE name = :name AND owner = :owner;

-- name: campaign_shares
-- What the fair share needs to know of campaigns.
SELECT id, name, shares, used_core_s, used_at_us, owner FROM campaigns WHERE id {in:ids};

-- name: grow_campaign
-- Jobs are added; `used` lifts a campaign that had nothing open to where the others stand.
UPDATE campaigns SET jobs = jobs + :jobs, events = events + :events, shares = :shares WHERE id = :id;

-- name: set_used many(id bigint, used double precision, at_us bigint)
-- Core-seconds that a campaign has had, decayed to a time.
UPDATE campaigns SET used_core_s = v.used, used_at_us = v.at_us FROM v WHERE campaigns.id = v.id;

-- name: add_campaigns many(id bigint, done bigint, failed bigint, payloads bigint, wall_us bigint, setup_us bigint, user_us bigint, system_us bigint, rss_kb bigint, read_bytes bigint, write_bytes bigint, started_us bigint, ended_us bigint, canceled bigint)
-- Add to the sums of campaigns. A sum of what sites report ends at 2^61 + 2^61: see USAGE_SUM_MAX.
UPDATE campaigns SET events_done = campaigns.events_done + v.done, events_failed = campaigns.events_failed + v.failed, events_canceled = campaigns.events_canceled + v.canceled, payloads = CASE WHEN campaigns.payloads < 2305843009213693952 THEN campaigns.payloads + v.payloads ELSE campaigns.payloads END, wall_us = CASE WHEN campaigns.wall_us < 2305843009213693952 THEN campaigns.wall_us + v.wall_us ELSE campaigns.wall_us END, setup_us = CASE WHEN campaigns.setup_us < 2305843009213693952 THEN campaigns.setup_us + v.setup_us ELSE campaigns.setup_us END, user_us = CASE WHEN campaigns.user_us < 2305843009213693952 THEN campaigns.user_us + v.user_us ELSE campaigns.user_us END, system_us = CASE WHEN campaigns.system_us < 2305843009213693952 THEN campaigns.system_us + v.system_us ELSE campaigns.system_us END, rss_kb = CASE WHEN v.rss_kb > campaigns.rss_kb THEN v.rss_kb ELSE campaigns.rss_kb END, read_bytes = CASE WHEN campaigns.read_bytes < 2305843009213693952 THEN campaigns.read_bytes + v.read_bytes ELSE campaigns.read_bytes END, write_bytes = CASE WHEN campaigns.write_bytes < 2305843009213693952 THEN campaigns.write_bytes + v.write_bytes ELSE campaigns.write_bytes END, first_started_us = COALESCE(campaigns.first_started_us, v.started_us), last_ended_us = COALESCE(v.ended_us, campaigns.last_ended_us)
FROM v WHERE campaigns.id = v.id;

-- name: campaigns
-- Campaigns, newest first.
SELECT {StoredCampaign}
FROM campaigns WHERE id < :before ORDER BY id DESC LIMIT :limit;

-- name: campaign_whole
-- One campaign.
SELECT {StoredCampaign}
FROM campaigns WHERE id = :id;

-- name: campaign_owners
-- Names and owners of campaigns.
SELECT id, name, owner FROM campaigns WHERE id {in:ids};

-- name: job_owners
-- Whose jobs these are.
SELECT jobs.id, campaigns.owner FROM jobs JOIN kinds ON kinds.id = jobs.kind JOIN campaigns ON campaigns.id = kinds.campaign WHERE jobs.id {in:ids};

-- name: campaign_known
-- Names to hint at.
SELECT name, owner FROM campaigns ORDER BY id DESC LIMIT 1000;

-- name: failure_counts
-- Failures by class of campaigns.
SELECT campaign, class AS name, failures FROM failure_counts WHERE campaign {in:ids};

-- name: add_failure_counts many(campaign bigint, class text, failures bigint)
-- Count failures by class.
INSERT INTO failure_counts (campaign, class, failures) SELECT v.campaign, v.class, v.failures FROM v WHERE true
ON CONFLICT (campaign, class) DO UPDATE SET failures = failure_counts.failures + excluded.failures;

-- name: insert_failures many(job bigint, campaign bigint, first bigint, count bigint, event bigint, site bigint, final smallint, evidence bytea)
-- Keep evidence.
INSERT INTO failures (job, campaign, first, count, event, site, final, evidence) SELECT v.job, v.campaign, v.first, v.count, v.event, v.site, v.final, v.evidence FROM v;

-- name: reopen_failures many(job bigint)
-- The events of these jobs run again: no failure of theirs so far is final.
UPDATE failures SET final = 0 FROM v WHERE failures.job = v.job AND failures.final = 1;

-- name: final_failures_of_job
-- A job's failures that are final, with their events: 1,000 at most, as many as are kept of a job.
SELECT id, first, count FROM failures WHERE job = :job AND final = 1;

-- name: reopen_failures_by_id many(id bigint)
-- These failures are not final any more.
UPDATE failures SET final = 0 FROM v WHERE failures.id = v.id;

-- name: failures_of_job
-- A job's failures, newest first.
SELECT {StoredFailure} FROM failures WHERE job = :job AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: failures_of_campaign
-- A campaign's failures, newest first.
SELECT {StoredFailure} FROM failures WHERE campaign = :campaign AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: failure_ids_of_campaign
-- Which they are, without what was seen of them.
SELECT id FROM failures WHERE campaign = :campaign AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: failures_by_id
-- These failures, newest first.
SELECT {StoredFailure} FROM failures WHERE id {in:ids} ORDER BY id DESC;

-- name: failures_newest
-- All failures, newest first.
SELECT {StoredFailure} FROM failures WHERE id < :before ORDER BY id DESC LIMIT :limit;

-- name: seed_bases
-- What the seeds of failed events follow from.
SELECT id, seed_base FROM jobs WHERE id {in:ids};

-- name: insert_outputs many(job bigint, number bigint, campaign bigint, name text, url text, size_bytes bigint, sha256 text, events text)
-- Delivered files.
INSERT INTO outputs (job, number, campaign, name, url, size_bytes, sha256, events) SELECT v.job, v.number, v.campaign, v.name, v.url, v.size_bytes, v.sha256, v.events FROM v;

-- name: upsert_arrived many(job bigint, number bigint, campaign bigint, name text, url text, size_bytes bigint, sha256 text, events text)
-- Directories of files of jobs that go on, as they stand now.
INSERT INTO outputs (job, number, campaign, name, url, size_bytes, sha256, events) SELECT v.job, v.number, v.campaign, v.name, v.url, v.size_bytes, v.sha256, v.events FROM v WHERE true
ON CONFLICT (job, number) DO UPDATE SET name = excluded.name, url = excluded.url, size_bytes = excluded.size_bytes, events = excluded.events;

-- name: delete_arrived [sqlite] many(job bigint, first bigint, stop bigint)
-- The same, when their job is delivered.
DELETE FROM outputs WHERE job = v.job AND number >= v.first AND number < v.stop;

-- name: delete_arrived [postgresql] many(job bigint, first bigint, stop bigint)
-- The same, when their job is delivered.
DELETE FROM outputs USING (SELECT v.job, v.first, v.stop FROM v) ended WHERE outputs.job = ended.job AND outputs.number >= ended.first AND outputs.number < ended.stop;

-- name: outputs_of_jobs
-- Delivered files of jobs.
SELECT {StoredOutput} FROM outputs WHERE job {in:ids} ORDER BY job, number;

-- name: jobs_kept
-- Jobs of some kinds with outputs that are not delivered, the newest first.
SELECT id FROM jobs WHERE kept = 1 AND kind {in:kinds} ORDER BY id DESC LIMIT :limit;

-- name: outputs_newest
-- Delivered files, those of the newest jobs first.
SELECT job, number, campaign, name, url, size_bytes, (SELECT COUNT(*) FROM outputs b WHERE b.job = outputs.job AND b.number < outputs.number) AS place
FROM outputs WHERE (job, number) < (:job, :number) ORDER BY job DESC, number DESC LIMIT :limit;

-- name: outputs_newest_of
-- Delivered files of a campaign, those of the newest jobs first.
SELECT job, number, campaign, name, url, size_bytes, (SELECT COUNT(*) FROM outputs b WHERE b.job = outputs.job AND b.number < outputs.number) AS place
FROM outputs WHERE campaign = :campaign AND (job, number) < (:job, :number) ORDER BY job DESC, number DESC LIMIT :limit;

-- name: outputs_of_campaign
-- Delivered files of a campaign; whole jobs, newest first.
SELECT {StoredOutput} FROM outputs WHERE campaign = :campaign AND job < :before ORDER BY job DESC, number LIMIT :limit;

-- name: outputs_of_campaign_from
-- The same, oldest first.
SELECT {StoredOutput} FROM outputs WHERE campaign = :campaign AND job > :after ORDER BY job, number LIMIT :limit;

-- name: outputs_among
-- Delivered files of some jobs, a page of them, oldest first.
SELECT {StoredOutput} FROM outputs WHERE job {in:ids} ORDER BY job, number LIMIT :limit;

-- name: campaigns_newest
-- A page of campaigns, newest first.
SELECT {StoredCampaign}
FROM campaigns ORDER BY id DESC LIMIT :limit OFFSET :offset;

-- name: campaigns_newest_of
-- The same of an owner's.
SELECT {StoredCampaign}
FROM campaigns WHERE owner = :owner ORDER BY id DESC LIMIT :limit OFFSET :offset;

-- name: campaigns_ended
-- Campaigns of which a job ended last.
SELECT {StoredCampaign}
FROM campaigns WHERE last_ended_us IS NOT NULL ORDER BY last_ended_us DESC, id DESC LIMIT :limit OFFSET :offset;

-- name: campaigns_sorted
-- Of the newest campaigns, those whose name holds a text, in one of several orders.
SELECT {StoredCampaign}
FROM (SELECT * FROM campaigns ORDER BY id DESC LIMIT :look) AS newest WHERE LOWER(name) LIKE :pattern ESCAPE '!'
ORDER BY CASE WHEN :sort = 'name' THEN name END, CASE :sort WHEN 'jobs' THEN jobs WHEN 'open' THEN events - events_done - events_failed - events_canceled WHEN 'failed' THEN events_failed WHEN 'time' THEN wall_us WHEN 'ended' THEN COALESCE(last_ended_us, 0) ELSE id END DESC, id DESC
LIMIT :limit OFFSET :offset;

-- name: campaigns_sorted_of
-- The same of an owner's.
SELECT {StoredCampaign}
FROM (SELECT * FROM campaigns WHERE owner = :owner ORDER BY id DESC LIMIT :look) AS newest WHERE LOWER(name) LIKE :pattern ESCAPE '!'
ORDER BY CASE WHEN :sort = 'name' THEN name END, CASE :sort WHEN 'jobs' THEN jobs WHEN 'open' THEN events - events_done - events_failed - events_canceled WHEN 'failed' THEN events_failed WHEN 'time' THEN wall_us WHEN 'ended' THEN COALESCE(last_ended_us, 0) ELSE id END DESC, id DESC
LIMIT :limit OFFSET :offset;

-- name: campaigns_unfinished
-- Campaigns with jobs that have not ended, in the same orders.
SELECT {StoredCampaign}
FROM campaigns WHERE id IN (SELECT kinds.campaign FROM counts CROSS JOIN kinds WHERE kinds.id = counts.kind AND counts.state IN (0, 1) AND counts.jobs > 0)
AND LOWER(name) LIKE :pattern ESCAPE '!' AND (:owner = '' OR owner = :owner)
ORDER BY CASE WHEN :sort = 'name' THEN name END, CASE :sort WHEN 'jobs' THEN jobs WHEN 'open' THEN events - events_done - events_failed - events_canceled WHEN 'failed' THEN events_failed WHEN 'time' THEN wall_us WHEN 'ended' THEN COALESCE(last_ended_us, 0) ELSE id END DESC, id DESC
LIMIT :limit OFFSET :offset;

-- name: campaigns_failing
-- The newest campaigns in which something failed.
SELECT name, owner FROM campaigns WHERE id IN (SELECT DISTINCT campaign FROM failure_counts ORDER BY campaign DESC LIMIT :limit) ORDER BY id DESC;

-- name: campaigns_failing_of
-- Those of an owner's newest campaigns in which something failed.
SELECT name, owner FROM (SELECT id, name, owner FROM campaigns WHERE owner = :owner ORDER BY id DESC LIMIT :limit) AS newest WHERE EXISTS (SELECT 1 FROM failure_counts WHERE campaign = newest.id) ORDER BY id DESC;

-- name: campaigns_of_owner
-- Numbers of an owner's newest campaigns.
SELECT id FROM campaigns WHERE owner = :owner ORDER BY id DESC LIMIT :limit;

-- name: campaigns_owned
-- Names of an owner's newest campaigns.
SELECT name, owner FROM campaigns WHERE owner = :owner ORDER BY id DESC LIMIT :limit;

-- name: insert_campaign
-- A new campaign. Its number was never another's, in the archive neither.
INSERT INTO campaigns (id, name, owner, shares, created_us, used_core_s, used_at_us)
SELECT 1 + MAX(tops.top), :name, :owner, :shares, :now_us, :used, :now_us FROM (SELECT COALESCE(MAX(id), 0) AS top FROM campaigns UNION ALL SELECT COALESCE(MAX(id), 0) FROM archived_campaigns) AS tops RETURNING id;
