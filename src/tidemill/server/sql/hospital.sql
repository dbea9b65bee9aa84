-- name: wards
-- Every ward that jobs were in.
SELECT id, name FROM wards ORDER BY id;

-- name: insert_ward
-- A ward not seen before.
INSERT INTO wards (name) VALUES (:name);

-- name: insert_stays many(job bigint, number bigint, ward bigint, cure text, why text, admitted_us bigint, outcome smallint, site bigint, ended_us bigint)
-- Jobs are admitted.
INSERT INTO stays (job, number, ward, cure, why, admitted_us, outcome, site, ended_us) SELECT v.job, v.number, v.ward, v.cure, v.why, v.admitted_us, v.outcome, v.site, v.ended_us FROM v;

-- name: end_stays many(job bigint, number bigint, outcome smallint, site bigint, ended_us bigint)
-- Stays that are over.
UPDATE stays SET outcome = v.outcome, site = v.site, ended_us = v.ended_us FROM v WHERE stays.job = v.job AND stays.number = v.number;

-- name: stays_of_jobs
-- The stays of jobs, in their order.
SELECT job, number, ward, cure, why, admitted_us, outcome, site, ended_us FROM stays WHERE job {in:ids} ORDER BY job, number;

-- name: delete_jobs_stays
-- Of jobs that go into the archive.
DELETE FROM stays WHERE job {in:ids};

-- name: upsert_calendar
-- What a source of downtimes says now.
INSERT INTO calendars (source, read_us, error, body) VALUES (:source, :read_us, :error, :body)
ON CONFLICT (source) DO UPDATE SET read_us = excluded.read_us, error = excluded.error, body = excluded.body;

-- name: calendars
-- What every source of downtimes said last.
SELECT source, read_us, error, body FROM calendars ORDER BY source;

-- name: delete_calendar
-- A source that is not read any more.
DELETE FROM calendars WHERE source = :source;

-- name: down_sites
-- Sites that are down now by the calendar.
SELECT site, until_us, reason FROM down_sites;

-- name: upsert_down
-- A site is down.
INSERT INTO down_sites (site, until_us, reason) VALUES (:site, :until_us, :reason)
ON CONFLICT (site) DO UPDATE SET until_us = excluded.until_us, reason = excluded.reason;

-- name: delete_down
-- A site is back.
DELETE FROM down_sites WHERE site = :site;
