-- name: sites
-- All sites.
SELECT {StoredSite} FROM sites ORDER BY id;

-- name: site_names
-- All sites by number.
SELECT id, name FROM sites;

-- name: upsert_tide many(site bigint, minute bigint, regular double precision, ours double precision, idle double precision, away double precision)
-- Nodes of a machine, minute by minute.
INSERT INTO tides (site, minute, regular, ours, idle, away) SELECT v.site, v.minute, v.regular, v.ours, v.idle, v.away FROM v WHERE true
ON CONFLICT (site, minute) DO UPDATE SET regular = excluded.regular, ours = excluded.ours, idle = excluded.idle, away = excluded.away;

-- name: tides
-- Nodes of sites over time, means of steps of some minutes.
SELECT site, (minute - :start) / :step AS slot, AVG(regular) AS regular, AVG(ours) AS opportunistic, AVG(idle) AS idle, AVG(away) AS away FROM tides WHERE site {in:sites} AND minute >= :start AND minute < :until GROUP BY 1, 2 ORDER BY 1, 2;

-- name: tide_hours
-- Nodes of all sites by hours, means over the minutes that are known.
SELECT site, minute / 60 AS hour, COUNT(*) AS minutes, AVG(regular) AS regular, AVG(ours) AS opportunistic, AVG(idle) AS idle, AVG(away) AS away FROM tides WHERE minute >= :since GROUP BY 1, 2;

-- name: ended_allocations
-- Allocations that have ended, since a time, and when they ran where that is known.
SELECT a.site, a.name, a.batch_id, a.state, a.nodes, a.cores, a.at_us, a.reason, a.busy_us, a.slot_us, COALESCE(p.started_us, 0) AS started_us, COALESCE(p.ended_us, 0) AS ended_us
FROM allocations a LEFT JOIN placements p ON p.site = a.site AND p.name = a.name
WHERE a.at_us >= :since_us AND a.state IN ('COMPLETED', 'FAILED', 'CANCELED', 'RELEASED', 'LOST');

-- name: prune_tide
-- The tide is bounded.
DELETE FROM tides WHERE site = :site AND minute < :before;

-- name: upsert_view
-- What a site last reported for display.
INSERT INTO site_views (site, at_us, body) VALUES (:site, :at_us, :body) ON CONFLICT (site) DO UPDATE SET at_us = excluded.at_us, body = excluded.body;

-- name: views
-- What sites last reported for display.
SELECT site, at_us, body FROM site_views;

-- name: insert_site
-- A site not seen before.
INSERT INTO sites (name, named_by) VALUES (:name, :named_by) RETURNING id;

-- name: update_site
-- What a sync reported about a site, and how far both directions are.
UPDATE sites SET epoch = :epoch, host = :host, version = :version, acked = :acked, ordered = :ordered, seen_us = :seen_us, lost = :lost, capacity = :capacity, allocations = :allocations WHERE id = :id;

-- name: update_drain
-- An operator drains or resumes a site.
UPDATE sites SET drained = :drained, drain_reason = :reason WHERE id = :id;

-- name: update_offers
-- The applications that a site offers have changed.
UPDATE sites SET offers = :offers WHERE id = :id;

-- name: insert_leases many(job bigint, lease bigint, site bigint, first bigint, count bigint, state smallint, leased_us bigint, cores bigint, event_s double precision)
-- Hand out ranges.
INSERT INTO leases (job, lease, site, first, count, state, leased_us, cores, event_s) SELECT v.job, v.lease, v.site, v.first, v.count, v.state, v.leased_us, v.cores, v.event_s FROM v;

-- name: update_leases many(job bigint, lease bigint, state smallint, ended_us bigint, reason text, part text)
-- Leases that ended or came back.
UPDATE leases SET state = v.state, ended_us = v.ended_us, reason = v.reason, part = v.part FROM v WHERE leases.job = v.job AND leases.lease = v.lease;

-- name: leases_of_jobs
-- All leases of jobs, in the order of records.Lease. One that is ACTIVE of a COMPLETED job was settled with it (`complete_jobs`).
SELECT {StoredLease}
FROM leases JOIN jobs ON jobs.id = leases.job WHERE leases.job {in:ids};

-- name: leased_of_jobs
-- Of these jobs those that run and are neither delivered nor stopped: the latest site, and how many events sites have.
SELECT id, site, n_leased FROM jobs WHERE id {in:ids} AND state = 1 AND delivering = 0 AND ends = 0;

-- name: sites_of_jobs
-- Which sites have open leases of jobs.
SELECT DISTINCT job, site FROM leases WHERE job {in:ids} AND state = 0;

-- name: leases_of_job
-- The latest leases of a job, newest first.
SELECT {StoredLease}
FROM leases JOIN jobs ON jobs.id = leases.job WHERE leases.job = :job ORDER BY leases.lease DESC LIMIT :limit;

-- name: leases_of_site
-- Leases of a site in one state whose jobs have not ended. Scans running jobs: for a site that is lost or returns.
SELECT leases.job, leases.lease FROM jobs JOIN leases ON leases.job = jobs.id
WHERE jobs.kind = :kind AND jobs.state IN (0, 1) AND leases.site = :site AND leases.state = :state;

-- name: homes_of_site
-- Jobs that have not ended and whose outputs lie at a site.
SELECT id FROM jobs WHERE kind = :kind AND state IN (0, 1) AND place = :site AND home = 1;

-- name: leased_events
-- Events that are leased, by site of the latest lease. Scans running jobs only.
SELECT site, SUM(n_leased) AS events FROM jobs WHERE kind {in:kinds} AND state = 1 GROUP BY site;

-- name: insert_orders
-- A batch of orders.
INSERT INTO orders (site, first, last, body) VALUES (:site, :first, :last, :body);

-- name: orders_of
-- Orders that a site has not acknowledged.
SELECT first, last, body FROM orders WHERE site = :site ORDER BY first;

-- name: delete_orders
-- Orders that are durable at the site.
DELETE FROM orders WHERE site = :site AND last <= :have;

-- name: delete_all_orders
-- Before the rest is written anew.
DELETE FROM orders WHERE site = :site;

-- name: upsert_allocations many(site bigint, name text, batch_id text, state text, nodes bigint, cores bigint, at_us bigint, reason text, busy_us bigint, slot_us bigint)
-- The latest state of allocations.
INSERT INTO allocations (site, name, batch_id, state, nodes, cores, at_us, reason, busy_us, slot_us) SELECT v.site, v.name, v.batch_id, v.state, v.nodes, v.cores, v.at_us, v.reason, v.busy_us, v.slot_us FROM v WHERE true
ON CONFLICT (site, name) DO UPDATE SET batch_id = excluded.batch_id, state = excluded.state, nodes = excluded.nodes, cores = excluded.cores, at_us = excluded.at_us, reason = excluded.reason, busy_us = excluded.busy_us, slot_us = excluded.slot_us;

-- name: allocations_of
-- A site's allocations, newest first.
SELECT {StoredAllocation} FROM allocations WHERE site = :site ORDER BY at_us DESC LIMIT :limit;

-- name: allocation_named
-- One allocation of a site.
SELECT {StoredAllocation} FROM allocations WHERE site = :site AND name = :name;

-- name: allocations_newest
-- Allocations of a site after a place in their listing, newest first.
SELECT {StoredAllocation} FROM allocations WHERE site = :site AND at_us <= :before AND (at_us < :before OR name > :name) ORDER BY at_us DESC, name LIMIT :limit;

-- name: allocations_newest_in
-- The same, of one state.
SELECT {StoredAllocation} FROM allocations WHERE site = :site AND state = :state AND at_us <= :before AND (at_us < :before OR name > :name) ORDER BY at_us DESC, name LIMIT :limit;

-- name: allocations_states
-- Allocations that the server knows, by site and state.
SELECT site, state, COUNT(*) AS allocations, SUM(nodes) AS nodes FROM allocations GROUP BY site, state;

-- name: prune_allocations
-- Keep the newest allocations of a site only.
DELETE FROM allocations WHERE site = :site AND at_us < (SELECT at_us FROM allocations WHERE site = :site ORDER BY at_us DESC LIMIT 1 OFFSET :kept);

-- name: insert_log_request
-- A user asks for a payload's output.
INSERT INTO log_requests (job, event, site) VALUES (:job, :event, :site) RETURNING id;

-- name: open_log_request
-- The same request (event -1: of the job), that its site has not answered yet.
SELECT id FROM log_requests WHERE job = :job AND COALESCE(event, -1) = :event AND site = :site AND answered = 0 ORDER BY id DESC LIMIT 1;

-- name: answer_log_request
-- The site has sent it.
UPDATE log_requests SET answered = 1, found = :found, stdout = :stdout, stderr = :stderr WHERE id = :id AND site = :site;

-- name: log_request
-- What has come.
SELECT answered, found, stdout, stderr FROM log_requests WHERE id = :id;

-- name: log_of_job
-- One request for output of a job's payload, with what has come.
SELECT event, answered, found, stdout, stderr FROM log_requests WHERE id = :id AND job = :job;

-- name: logs_of_job
-- The latest requests for output of a job's payloads.
SELECT id, event, answered, found FROM log_requests WHERE job = :job ORDER BY id DESC LIMIT :limit;

-- name: prune_log_requests
-- Old ones are gone.
DELETE FROM log_requests WHERE id < :before;

-- name: insert_lost_results many(site bigint, job bigint, done text)
-- Results that are lost unless their site returns.
INSERT INTO lost_results (site, job, done) SELECT v.site, v.job, v.done FROM v WHERE true
ON CONFLICT (site, job) DO UPDATE SET done = excluded.done;

-- name: lost_results
-- What a returning site may still have.
SELECT job, done FROM lost_results WHERE site = :site;

-- name: delete_lost_results
-- It is decided.
DELETE FROM lost_results WHERE site = :site;

-- name: insert_changes many(first bigint, last bigint, campaign bigint, body bytea)
-- Batches of state changes, each of one campaign.
INSERT INTO changes (first, last, campaign, body) SELECT v.first, v.last, v.campaign, v.body FROM v;

-- name: changes_after
-- Batches with changes after a number: from the one that may hold that number on.
SELECT first, last, campaign, body FROM changes
WHERE first >= (SELECT COALESCE(MAX(first), 0) FROM changes WHERE first <= :after) AND last > :after ORDER BY first LIMIT :limit;

-- name: changes_of_campaign
-- The same of a campaign.
SELECT first, last, campaign, body FROM changes WHERE campaign = :campaign
AND first >= (SELECT COALESCE(MAX(first), 0) FROM changes WHERE campaign = :campaign AND first <= :after) AND last > :after ORDER BY first LIMIT :limit;

-- name: changes_begin
-- The first number that is kept.
SELECT COALESCE(MIN(first), 0) AS first FROM changes;

-- name: prune_changes
-- The feed is bounded; `before` is not beyond what followers were sent.
DELETE FROM changes WHERE first < :before AND last < :before;
