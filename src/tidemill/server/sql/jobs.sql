-- name: insert_jobs [sqlite] many(id bigint, kind bigint, spec bigint, state smallint, site bigint, pin bigint, place bigint, ready smallint, rank bigint, events bigint, seed_base bigint, created_us bigint, ended_us bigint, reason text, name text, blocked bigint)
-- Add jobs as they are submitted; PostgreSQL takes them by COPY.
INSERT INTO jobs (id, kind, spec, state, site, pin, place, ready, rank, events, seed_base, created_us, ended_us, reason, name, blocked)
VALUES (v.id, v.kind, v.spec, v.state, v.site, v.pin, v.place, v.ready, v.rank, v.events, v.seed_base, v.created_us, v.ended_us, v.reason, v.name, v.blocked);

-- name: insert_jobs [postgresql]
-- Add jobs as they are submitted.
COPY jobs (id, kind, spec, state, site, pin, place, ready, rank, events, seed_base, created_us, ended_us, reason, name, blocked) FROM STDIN;

-- name: jobs_by_id
-- Whole rows.
SELECT {StoredJob}
FROM jobs WHERE id {in:ids};

-- name: jobs_ready
-- The next jobs to lease of one kind and place, by priority, then age: a scan of the head of an index.
SELECT {StoredJob}
FROM jobs WHERE ready = 1 AND kind = :kind AND place = :place AND (rank, id) > (:rank, :id) ORDER BY rank, id LIMIT :limit;

-- name: ready_of_legs [sqlite]
-- The next jobs to lease of each kind and place of a list (JSON), up to a limit each: for many kinds at once.
SELECT json_extract(leg.value, '$[0]') AS kind, json_extract(leg.value, '$[1]') AS place, jobs.rank, jobs.id
FROM json_each(:legs) AS leg CROSS JOIN jobs ON jobs.id IN (
  SELECT each.id FROM jobs AS each WHERE each.ready = 1 AND each.kind = json_extract(leg.value, '$[0]') AND each.place = json_extract(leg.value, '$[1]')
    AND (each.rank, each.id) > (json_extract(leg.value, '$[2]'), json_extract(leg.value, '$[3]')) ORDER BY each.rank, each.id LIMIT :limit);

-- name: ready_of_legs [postgresql]
-- The next jobs to lease of each kind and place of a list (JSON), up to a limit each: for many kinds at once.
SELECT leg.kind, leg.place, found.rank, found.id
FROM (SELECT CAST(value->>0 AS bigint) AS kind, CAST(value->>1 AS bigint) AS place, CAST(value->>2 AS bigint) AS rank, CAST(value->>3 AS bigint) AS id FROM jsonb_array_elements(CAST(:legs AS jsonb))) AS leg
CROSS JOIN LATERAL (
  SELECT jobs.rank, jobs.id FROM jobs WHERE jobs.ready = 1 AND jobs.kind = leg.kind AND jobs.place = leg.place AND (jobs.rank, jobs.id) > (leg.rank, leg.id) ORDER BY jobs.rank, jobs.id LIMIT :limit) AS found;

-- name: update_jobs many(id bigint, state smallint, site bigint, place bigint, home smallint, ready smallint, n_done bigint, n_failed bigint, n_leased bigint, done text, failed text, leased text, started_us bigint, ended_us bigint, reason text, blocked bigint, attempts bigint, refusals bigint, refused text, evidences bigint, delivering smallint, outputs smallint, told bigint, usage text, kept smallint, delivered text, sent text, deliveries bigint, ends smallint, ward bigint, moves bigint, waits_us bigint, n_canceled bigint, canceled text)
-- Write back everything of a job that can change.
UPDATE jobs SET state = v.state, site = v.site, place = v.place, home = v.home, ready = v.ready, n_done = v.n_done, n_failed = v.n_failed, n_leased = v.n_leased, done = v.done, failed = v.failed, leased = v.leased, started_us = v.started_us, ended_us = v.ended_us, reason = v.reason, blocked = v.blocked, attempts = v.attempts, refusals = v.refusals, refused = v.refused, evidences = v.evidences, delivering = v.delivering, outputs = v.outputs, told = v.told, usage = v.usage, kept = v.kept, delivered = v.delivered, sent = v.sent, deliveries = v.deliveries, ends = v.ends, ward = v.ward, moves = v.moves, waits_us = v.waits_us, n_canceled = v.n_canceled, canceled = v.canceled
FROM v WHERE jobs.id = v.id;

-- name: respecify_jobs many(id bigint, kind bigint, spec bigint)
-- A retry changes what jobs ask for.
UPDATE jobs SET kind = v.kind, spec = v.spec
FROM v WHERE jobs.id = v.id;

-- name: lease_jobs many(id bigint, site bigint, home smallint, place bigint, started_us bigint)
-- Jobs of one event that got their first lease: what that changes.
UPDATE jobs SET state = 1, ready = 0, n_leased = 1, leased = '0', attempts = 1, site = v.site, told = v.site, home = v.home, place = v.place, started_us = v.started_us
FROM v WHERE jobs.id = v.id;

-- name: complete_jobs many(id bigint, ended_us bigint, usage text)
-- Jobs of one event that are done and kept no outputs: what that changes.
UPDATE jobs SET state = 2, ready = 0, n_done = 1, done = '0', n_leased = 0, leased = '', reason = '', refusals = 0, told = 0, ended_us = v.ended_us, usage = v.usage
FROM v WHERE jobs.id = v.id;

-- name: jobs_newest
-- Newest jobs before an id: the page without filters.
SELECT id FROM jobs WHERE id < :before ORDER BY id DESC LIMIT :limit;

-- name: jobs_newest_in
-- Newest jobs of one kind, state and site: one leg of a filtered page.
SELECT id FROM jobs WHERE kind = :kind AND state = :state AND site = :site AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: jobs_newest_named
-- Newest jobs of a name.
SELECT id, kind, state, site FROM jobs WHERE name {binary} = :name AND name <> '' AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: jobs_oldest
-- Oldest jobs after an id: the page without filters, the other way round.
SELECT id FROM jobs WHERE id > :after ORDER BY id LIMIT :limit;

-- name: jobs_look_newest
-- The newest jobs before an id, with what filters ask of them.
SELECT id, kind, state, site FROM jobs WHERE id < :before ORDER BY id DESC LIMIT :limit;

-- name: jobs_look_oldest
-- The oldest jobs after an id, with what filters ask of them.
SELECT id, kind, state, site FROM jobs WHERE id > :after ORDER BY id LIMIT :limit;

-- name: jobs_look_ended
-- The jobs that ended last before a time, with what filters ask of them.
SELECT id, kind, state, site, ended_us FROM jobs WHERE ended_us IS NOT NULL AND (ended_us, id) < (:ended_us, :id) ORDER BY ended_us DESC, id DESC LIMIT :limit;

-- name: jobs_look_named
-- Jobs whose name lies between two texts, by name, with what filters ask of them.
SELECT id, kind, state, site, name FROM jobs WHERE name <> '' AND (name {binary}, id) > (:name, :id) AND name {binary} < :last ORDER BY name {binary}, id LIMIT :limit;

-- name: newest_of_legs [sqlite]
-- The newest job before an id of each kind, state and site of a list (JSON).
SELECT json_extract(leg.value, '$[0]') AS kind, json_extract(leg.value, '$[1]') AS state, json_extract(leg.value, '$[2]') AS site,
  (SELECT MAX(id) FROM jobs WHERE kind = json_extract(leg.value, '$[0]') AND state = json_extract(leg.value, '$[1]') AND site = json_extract(leg.value, '$[2]') AND id < :before) AS head
FROM json_each(:legs) AS leg;

-- name: newest_of_legs [postgresql]
-- The newest job before an id of each kind, state and site of a list (JSON).
SELECT leg.kind, leg.state, leg.site, (SELECT MAX(id) FROM jobs WHERE kind = leg.kind AND state = leg.state AND site = leg.site AND id < :before) AS head
FROM (SELECT CAST(value->>0 AS bigint) AS kind, CAST(value->>1 AS smallint) AS state, CAST(value->>2 AS bigint) AS site FROM jsonb_array_elements(CAST(:legs AS jsonb))) AS leg;

-- name: oldest_of_legs [sqlite]
-- The oldest job after an id of each kind, state and site of a list (JSON).
SELECT json_extract(leg.value, '$[0]') AS kind, json_extract(leg.value, '$[1]') AS state, json_extract(leg.value, '$[2]') AS site,
  (SELECT MIN(id) FROM jobs WHERE kind = json_extract(leg.value, '$[0]') AND state = json_extract(leg.value, '$[1]') AND site = json_extract(leg.value, '$[2]') AND id > :after) AS head
FROM json_each(:legs) AS leg;

-- name: oldest_of_legs [postgresql]
-- The oldest job after an id of each kind, state and site of a list (JSON).
SELECT leg.kind, leg.state, leg.site, (SELECT MIN(id) FROM jobs WHERE kind = leg.kind AND state = leg.state AND site = leg.site AND id > :after) AS head
FROM (SELECT CAST(value->>0 AS bigint) AS kind, CAST(value->>1 AS smallint) AS state, CAST(value->>2 AS bigint) AS site FROM jsonb_array_elements(CAST(:legs AS jsonb))) AS leg;

-- name: jobs_after_in
-- Jobs of one kind, state and site after an id, ascending: for what touches a whole campaign piece by piece.
SELECT id FROM jobs WHERE kind = :kind AND state = :state AND site = :site AND id > :after ORDER BY id LIMIT :limit;

-- name: states_by_id
-- State and reason of jobs that others come after.
SELECT id, state, reason FROM jobs WHERE id {in:ids};

-- name: insert_specs many(id bigint, hash bytea, body bytea)
-- Keep specs by the hash of their text.
INSERT INTO specs (id, hash, body) SELECT v.id, v.hash, v.body FROM v;

-- name: insert_short_spec
-- What is left of a specification whose jobs were canceled before they ran.
INSERT INTO specs (id, hash, body, shortened) VALUES (:id, :hash, :body, 1);

-- name: specs_never_run
-- Which of these specifications are large, and of few jobs, all of which were canceled before a time and never ran. Jobs are counted first, as the second question reads all of them. Limits keep a planner from answering by a scan of all jobs, as it does for NOT EXISTS.
SELECT id, (SELECT COUNT(*) FROM (SELECT 1 FROM jobs WHERE jobs.spec = specs.id LIMIT :most + 1) AS few) AS jobs, LENGTH(body) AS length
FROM specs WHERE id {in:ids} AND shortened = 0 AND LENGTH(body) > :least
AND CASE WHEN (SELECT COUNT(*) FROM (SELECT 1 FROM jobs WHERE jobs.spec = specs.id LIMIT :most + 1) AS few) > :most THEN 1
ELSE (SELECT COUNT(*) FROM (SELECT 1 FROM jobs WHERE jobs.spec = specs.id AND (jobs.state <> 5 OR jobs.ended_us >= :before OR jobs.started_us IS NOT NULL OR jobs.n_done > 0 OR jobs.n_failed > 0 OR jobs.kept = 1) LIMIT 1) AS others) END = 0;

-- name: jobs_with_specs
-- The jobs of these specifications, with their kinds.
SELECT id, kind, spec FROM jobs WHERE spec {in:ids};

-- name: jobs_shortened
-- Which of these jobs have only what is left of a specification.
SELECT jobs.id FROM jobs JOIN specs ON specs.id = jobs.spec WHERE jobs.id {in:ids} AND specs.shortened = 1;

-- name: jobs_ended_from
-- Jobs that ended before a time, after a place in that order.
SELECT id, spec, state, ended_us FROM jobs WHERE ended_us IS NOT NULL AND (ended_us, id) > (:after_us, :after) AND ended_us < :before ORDER BY ended_us, id LIMIT :limit;

-- name: spec_by_hash
-- The spec with a hash, if it is there already.
SELECT id FROM specs WHERE hash = :hash;

-- name: specs_by_id
-- Texts of specs.
SELECT id, body FROM specs WHERE id {in:ids};

-- name: insert_kind
-- A kind of jobs not seen before.
INSERT INTO kinds (id, campaign, app, cores, memory_mb, devices, nodes, ranks, home, data)
SELECT COALESCE(MAX(id), 0) + 1, :campaign, :app, :cores, :memory_mb, :devices, :nodes, :ranks, :home, :data FROM kinds RETURNING id;

-- name: kinds_by_id
-- These kinds.
SELECT {StoredKind} FROM kinds WHERE id {in:ids};

-- name: kind_by_key
-- A kind that there may be already.
SELECT id FROM kinds WHERE campaign = :campaign AND app = :app AND cores = :cores AND memory_mb = :memory_mb AND devices = :devices AND nodes = :nodes AND ranks = :ranks AND home = :home AND data = :data;

-- name: open_kinds
-- Kinds with jobs that have not ended.
SELECT {StoredKind} FROM kinds WHERE id IN (SELECT kind FROM counts WHERE state <= 1 AND jobs > 0);

-- name: open_counts
-- Counters of jobs that have not ended.
SELECT kind, state, site, jobs FROM counts WHERE state <= 1 AND jobs > 0;

-- name: kind_alike
-- A kind that differs at most in the data that its jobs read.
SELECT id FROM kinds WHERE campaign = :campaign AND app = :app AND cores = :cores AND memory_mb = :memory_mb AND devices = :devices AND nodes = :nodes AND ranks = :ranks AND home = :home LIMIT 1;

-- name: kinds_in
-- How many kinds a campaign has but for the data that they read, whatever has become of their jobs.
SELECT COUNT(*) AS kinds FROM (SELECT DISTINCT app, cores, memory_mb, devices, nodes, ranks, home FROM kinds WHERE campaign = :campaign) AS alike;

-- name: data_kinds_in
-- Number of a campaign's kinds that differ in their data.
SELECT COUNT(*) AS kinds FROM kinds WHERE campaign = :campaign AND data <> '';

-- name: wards_of_kind
-- The places of a kind's jobs that wait in wards: a range of an index.
SELECT DISTINCT place FROM jobs WHERE ready = 1 AND kind = :kind AND place < 0;

-- name: ready_in
-- The head of a kind's jobs that wait at a place, after a rank and id: what the hospital asks of them.
SELECT id, rank, created_us, moves FROM jobs WHERE ready = 1 AND kind = :kind AND place = :place AND (rank, id) > (:rank, :id) ORDER BY rank, id LIMIT :limit;

-- name: add_counts many(kind bigint, state smallint, site bigint, jobs bigint)
-- Change the counters of jobs.
INSERT INTO counts (kind, state, site, jobs) SELECT v.kind, v.state, v.site, v.jobs FROM v WHERE true
ON CONFLICT (kind, state, site) DO UPDATE SET jobs = counts.jobs + excluded.jobs;

-- name: counts_of_campaign
-- Counters of a campaign that count something.
SELECT counts.kind, counts.state, counts.site FROM kinds JOIN counts ON counts.kind = kinds.id WHERE kinds.campaign = :campaign AND counts.jobs > 0;

-- name: campaigns_at_sites
-- Which campaigns run at which sites.
SELECT DISTINCT kinds.campaign, counts.site FROM counts CROSS JOIN kinds WHERE kinds.id = counts.kind AND counts.state = 1 AND counts.site > 0 AND counts.jobs > 0;

-- name: counts_of_campaigns
-- Jobs by state of some campaigns.
SELECT kinds.campaign, counts.state, SUM(counts.jobs) AS jobs FROM kinds JOIN counts ON counts.kind = kinds.id WHERE kinds.campaign {in:ids} AND counts.jobs > 0 GROUP BY kinds.campaign, counts.state;

-- name: insert_deps many(job bigint, on_job bigint, on_campaign bigint, upto bigint)
-- What jobs wait for.
INSERT INTO deps (job, on_job, on_campaign, upto) SELECT v.job, v.on_job, v.on_campaign, v.upto FROM v WHERE true ON CONFLICT (job, on_job, on_campaign) DO NOTHING;

-- name: deps_on_jobs
-- Who waits for these jobs.
SELECT job, on_job, on_campaign, upto FROM deps WHERE on_job {in:ids} AND on_job > 0;

-- name: deps_on_campaign
-- Who waits for jobs of a campaign.
SELECT job, on_job, on_campaign, upto FROM deps WHERE on_campaign = :campaign;

-- name: deps_of
-- What a job still waits for.
SELECT job, on_job, on_campaign, upto FROM deps WHERE job = :job;

-- name: deps_any
-- Whether anything waits for anything.
SELECT 1 AS found FROM deps LIMIT 1;

-- name: delete_deps many(job bigint, on_job bigint, on_campaign bigint)
-- Dependencies that are over.
DELETE FROM deps WHERE (job, on_job, on_campaign) IN (SELECT v.job, v.on_job, v.on_campaign FROM v);

-- name: take_numbers
-- Take numbers from a counter; returns the first after them.
UPDATE meta SET value = value + :count WHERE name = :name RETURNING value;

-- name: counters
-- Counters of some kinds, of a state and a site (or any: -1).
SELECT kind, state, site, jobs FROM counts WHERE jobs > 0 AND kind {in:kinds} AND (:state < 0 OR state = :state) AND (:site < 0 OR site = :site);

-- name: counters_of_state
-- Some counters of a state.
SELECT kind, state, site, jobs FROM counts WHERE state = :state AND jobs > 0 LIMIT :limit;

-- name: counters_at_site
-- Some counters of a state at a site.
SELECT kind, state, site, jobs FROM counts WHERE state = :state AND site = :site AND jobs > 0 LIMIT :limit;

-- name: kinds_running
-- Kinds of which jobs run.
SELECT kind FROM counts WHERE state = 1 AND jobs > 0;

-- name: kinds_of_campaign
-- Kinds of a campaign, of an application or (any) of all.
SELECT id FROM kinds WHERE campaign = :campaign AND (:any_app = 1 OR app = :app) LIMIT :limit;

-- name: kinds_of_app
-- Kinds of an application, of an owner's campaigns or (any) of all; the newest.
SELECT kinds.id FROM kinds JOIN campaigns ON campaigns.id = kinds.campaign WHERE kinds.app = :app AND (:any_owner = 1 OR campaigns.owner = :owner) ORDER BY kinds.id DESC LIMIT :limit;

-- name: kinds_of_owner
-- Kinds of the newest of an owner's campaigns.
SELECT kinds.id FROM (SELECT id FROM campaigns WHERE owner = :owner ORDER BY id DESC LIMIT :limit) AS own JOIN kinds ON kinds.campaign = own.id LIMIT :limit;

-- name: kinds_look
-- What filters ask of kinds.
SELECT kinds.id, kinds.app, campaigns.owner FROM kinds JOIN campaigns ON campaigns.id = kinds.campaign WHERE kinds.id {in:ids};

-- name: apps_known
-- Names of applications that jobs have asked for: one index look-up for each.
WITH RECURSIVE known (app) AS (
  SELECT MIN(app) FROM kinds WHERE app > ''
  UNION ALL SELECT (SELECT MIN(kinds.app) FROM kinds WHERE kinds.app > known.app) FROM known WHERE known.app IS NOT NULL)
SELECT app FROM known WHERE app IS NOT NULL LIMIT :limit;

-- name: apps_known_to
-- Names of applications that jobs of an owner's newest campaigns have asked for.
SELECT DISTINCT app FROM kinds WHERE app <> '' AND campaign IN (SELECT id FROM campaigns WHERE owner = :owner ORDER BY id DESC LIMIT 1000) ORDER BY app LIMIT :limit;

-- name: submit_by_key
-- What was answered to this key of an owner.
SELECT digest, campaign, first_job, count FROM submits WHERE owner = :owner AND key = :key;

-- name: insert_submit
-- Remember what is answered to a key.
INSERT INTO submits (owner, key, digest, campaign, first_job, count, at_us) VALUES (:owner, :key, :digest, :campaign, :first_job, :count, :now_us);
