-- name: insert_audit
-- Tell a change in the audit log, if this transaction is committed.
INSERT INTO audit_pending (id, at_us, body) VALUES (:id, :at_us, :body);

-- name: audit_pending
-- What the log does not have yet.
SELECT id, at_us, body FROM audit_pending ORDER BY id LIMIT :limit;

-- name: delete_audit
-- The log has it.
DELETE FROM audit_pending WHERE id <= :id;

-- name: set_audit_lines
-- How many lines the log has at least.
UPDATE meta SET value = :lines WHERE name = 'audit_lines' AND value < :lines;

-- name: audit_lines
-- How many lines the log has at least.
SELECT value FROM meta WHERE name = 'audit_lines';

-- name: set_submitter
-- Whose credential a submission came with.
UPDATE submits SET subject = :subject, credential = :credential, remark = :remark WHERE first_job = :first_job;

-- name: submitter_of
-- Whose credential brought a job.
SELECT first_job, count, subject, credential, remark FROM submits WHERE first_job <= :job ORDER BY first_job DESC LIMIT 1;

-- name: upsert_placements many(site bigint, name text, batch_id text, hosts text, started_us bigint, ended_us bigint, at_us bigint, held_cores bigint, held_gpus bigint)
-- Where and when allocations are.
INSERT INTO placements (site, name, batch_id, hosts, started_us, ended_us, at_us, held_cores, held_gpus) SELECT v.site, v.name, v.batch_id, v.hosts, v.started_us, v.ended_us, v.at_us, v.held_cores, v.held_gpus FROM v WHERE true
ON CONFLICT (site, name) DO UPDATE SET batch_id = excluded.batch_id, hosts = CASE WHEN excluded.hosts <> '' THEN excluded.hosts ELSE placements.hosts END, started_us = CASE WHEN excluded.started_us > 0 THEN excluded.started_us ELSE placements.started_us END, ended_us = excluded.ended_us, at_us = excluded.at_us, held_cores = excluded.held_cores, held_gpus = excluded.held_gpus;

-- name: insert_ran many(site bigint, allocation text, at_us bigint, body bytea)
-- What ran in an allocation.
INSERT INTO ran (site, allocation, at_us, body) SELECT v.site, v.allocation, v.at_us, v.body FROM v;

-- name: insert_approved many(site bigint, app text, since_us bigint, version text, digest text)
-- An application of a site is another one from now on.
INSERT INTO approved (site, app, since_us, version, digest) SELECT v.site, v.app, v.since_us, v.version, v.digest FROM v WHERE true
ON CONFLICT (site, app, since_us) DO UPDATE SET version = excluded.version, digest = excluded.digest;

-- name: placements_of_batch
-- Allocations that had an id of the batch system, of one site or (0) of any, at a time or (0) at any; newest first.
SELECT site, name, batch_id, hosts, started_us, ended_us FROM placements WHERE batch_id = :batch_id AND (:site = 0 OR site = :site) AND (:at_us = 0 OR (started_us <= :at_us AND (ended_us = 0 OR ended_us >= :at_us))) ORDER BY started_us DESC LIMIT :limit;

-- name: placements_at
-- Allocations of one site or (0) of any that had a node of this name, with a domain or without, at a time; newest first.
SELECT site, name, batch_id, hosts, started_us, ended_us FROM placements WHERE (:site = 0 OR site = :site) AND started_us > 0 AND started_us <= :at_us AND (ended_us = 0 OR ended_us >= :at_us) AND (hosts LIKE :bare ESCAPE '!' OR hosts LIKE :domain ESCAPE '!') ORDER BY started_us DESC LIMIT :limit;

-- name: placements_between
-- Allocations of a site that held nodes between two times, by name, after a name.
SELECT placements.name, placements.batch_id, placements.hosts, placements.started_us, placements.ended_us, COALESCE(allocations.nodes, 0) AS nodes, COALESCE(allocations.cores, 0) AS cores FROM placements LEFT JOIN allocations ON allocations.site = placements.site AND allocations.name = placements.name WHERE placements.site = :site AND placements.started_us > 0 AND placements.started_us < :until AND (placements.ended_us = 0 OR placements.ended_us > :since) AND placements.name > :after ORDER BY placements.name LIMIT :limit;

-- name: add_core_use many(site bigint, allocation text, owner text, campaign text, app text, core_us bigint, at_us bigint)
-- What payloads used of an allocation. Sums that a site drives beyond 2^61 grow no more.
INSERT INTO core_use (site, allocation, owner, campaign, app, core_us, at_us) SELECT v.site, v.allocation, v.owner, v.campaign, v.app, v.core_us, v.at_us FROM v WHERE true
ON CONFLICT (site, allocation, owner, campaign, app) DO UPDATE SET core_us = CASE WHEN core_use.core_us + excluded.core_us > 2305843009213693952 THEN 2305843009213693952 ELSE core_use.core_us + excluded.core_us END, at_us = excluded.at_us;

-- name: leased_cores
-- Of these jobs those that a site ever had: the cores of a payload, campaign, owner and application.
SELECT leases.job, MAX(leases.cores) AS cores, campaigns.owner, campaigns.name, kinds.app FROM leases JOIN jobs ON jobs.id = leases.job JOIN kinds ON kinds.id = jobs.kind JOIN campaigns ON campaigns.id = kinds.campaign WHERE leases.site = :site AND leases.job {in:ids} GROUP BY leases.job, campaigns.owner, campaigns.name, kinds.app;

-- name: held_by_allocations
-- Allocations that held nodes between two times, by site and name, after one of them.
SELECT placements.site, placements.name, placements.batch_id, placements.started_us, placements.ended_us, placements.held_cores, placements.held_gpus, COALESCE(allocations.nodes, 0) AS nodes, COALESCE(allocations.cores, 0) AS cores FROM placements LEFT JOIN allocations ON allocations.site = placements.site AND allocations.name = placements.name WHERE placements.started_us > 0 AND placements.started_us < :until AND (placements.ended_us = 0 OR placements.ended_us > :since) AND (placements.site, placements.name) > (:site, :after) ORDER BY placements.site, placements.name LIMIT :limit;

-- name: held_by_allocations_of
-- The same of those that an owner's payloads used: costs nothing of the others.
SELECT DISTINCT core_use.site, core_use.allocation AS name, placements.batch_id, placements.started_us, placements.ended_us, placements.held_cores, placements.held_gpus, COALESCE(allocations.nodes, 0) AS nodes, COALESCE(allocations.cores, 0) AS cores FROM core_use JOIN placements ON placements.site = core_use.site AND placements.name = core_use.allocation LEFT JOIN allocations ON allocations.site = core_use.site AND allocations.name = core_use.allocation WHERE core_use.owner = :owner AND (core_use.site, core_use.allocation) > (:site, :after) AND placements.started_us > 0 AND placements.started_us < :until AND (placements.ended_us = 0 OR placements.ended_us > :since) ORDER BY core_use.site, core_use.allocation LIMIT :limit;

-- name: core_use_of
-- What payloads used of some of a site's allocations.
SELECT allocation, owner, campaign, app, core_us FROM core_use WHERE site = :site AND allocation {in:names} ORDER BY allocation, owner, campaign, app;

-- name: prune_core_use
-- Older ones have had their time.
DELETE FROM core_use WHERE at_us < :before;

-- name: ran_in
-- What ran in an allocation.
SELECT at_us, body FROM ran WHERE site = :site AND allocation = :allocation ORDER BY id LIMIT :limit;

-- name: approved_of
-- What a site's applications were.
SELECT app, since_us, version, digest FROM approved WHERE site = :site ORDER BY since_us;

-- name: campaigns_of_jobs
-- Campaign, owner and application of jobs.
SELECT jobs.id, campaigns.name, campaigns.owner, kinds.app FROM jobs JOIN kinds ON kinds.id = jobs.kind JOIN campaigns ON campaigns.id = kinds.campaign WHERE jobs.id {in:ids};

-- name: leased_to
-- Which of these jobs a site ever had.
SELECT DISTINCT job FROM leases WHERE site = :site AND job {in:ids};

-- name: prune_ran
-- Older ones have had their time.
DELETE FROM ran WHERE at_us < :before;

-- name: prune_placements
-- Older ones have had their time.
DELETE FROM placements WHERE at_us < :before AND ended_us > 0;

-- name: insert_payload_times many(job bigint, site bigint, at_us bigint, count bigint, body bytea)
-- When payloads of a timed job ran.
INSERT INTO payload_times (job, site, at_us, count, body) SELECT v.job, v.site, v.at_us, v.count, v.body FROM v;

-- name: payload_times_count
-- How many times of a job are kept.
SELECT COALESCE(SUM(count), 0) AS payloads FROM payload_times WHERE job = :job;

-- name: payload_times_of
-- Times of a job's payloads, in the order in which they came.
SELECT id, site, body FROM payload_times WHERE job = :job AND id > :after ORDER BY id LIMIT :limit;

-- name: payload_times_latest
-- The reports on a job that came last, newest first.
SELECT body FROM payload_times WHERE job = :job ORDER BY id DESC LIMIT :limit;

-- name: prune_payload_times
-- Older ones have had their time.
DELETE FROM payload_times WHERE at_us < :before;

-- name: note_revoked
-- The list of what is revoked has had entries: no server of this database starts without one.
INSERT INTO meta (name, value) VALUES ('revoked_known', 1) ON CONFLICT (name) DO NOTHING;

-- name: revoked_known
-- Whether it has.
SELECT 1 AS found FROM meta WHERE name = 'revoked_known';
