-- name: owners_of_jobs
-- Whose jobs these are.
SELECT DISTINCT campaigns.owner FROM jobs JOIN kinds ON kinds.id = jobs.kind JOIN campaigns ON campaigns.id = kinds.campaign WHERE jobs.id {in:ids};

-- name: campaign_owner
-- Whose campaign it is.
SELECT owner FROM campaigns WHERE name = :name;

-- name: stored_of
-- Bytes of an owner's jobs.
SELECT bytes FROM stored WHERE owner = :owner;

-- name: add_stored
-- Jobs of an owner were added.
INSERT INTO stored (owner, bytes) VALUES (:owner, :bytes) ON CONFLICT (owner) DO UPDATE SET bytes = stored.bytes + excluded.bytes;

-- name: campaigns_of
-- Campaigns of somebody, newest first.
SELECT id, name, owner, shares, created_us, jobs, events, events_done, events_failed, payloads, wall_us, setup_us, user_us, system_us, rss_kb, read_bytes, write_bytes, first_started_us, last_ended_us
FROM campaigns WHERE owner = :owner AND id < :before ORDER BY id DESC LIMIT :limit;
