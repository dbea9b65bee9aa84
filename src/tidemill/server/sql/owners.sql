-- name: campaign_of_owner
-- An owner's campaign of this name, in the database or in the archive.
SELECT id, owner, name, 0 AS archived FROM campaigns WHERE name = :name AND owner = :owner
UNION ALL SELECT id, owner, name, 1 FROM archived_campaigns WHERE name = :name AND owner = :owner;

-- name: campaigns_named
-- The campaigns of this name, of all owners, by owner.
SELECT id, owner, name, archived FROM (SELECT id, owner, name, 0 AS archived FROM campaigns WHERE name = :name
UNION ALL SELECT id, owner, name, 1 FROM archived_campaigns WHERE name = :name) AS found ORDER BY owner LIMIT :limit;

-- name: stored_of
-- Bytes of an owner's jobs.
SELECT bytes FROM stored WHERE owner = :owner;

-- name: stored_of_all
-- Bytes of the jobs of all owners.
SELECT COALESCE(SUM(bytes), 0) AS bytes FROM stored;

-- name: owners_storing
-- Owners whose jobs have more bytes than a number. What has no owner has no quota.
SELECT owner FROM stored WHERE bytes > :bytes AND owner <> '' ORDER BY owner;

-- name: add_stored
-- Jobs of an owner were added.
INSERT INTO stored (owner, bytes) VALUES (:owner, :bytes) ON CONFLICT (owner) DO UPDATE SET bytes = stored.bytes + excluded.bytes;

-- name: campaigns_of
-- Campaigns of one owner, newest first.
SELECT {StoredCampaign}
FROM campaigns WHERE owner = :owner AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: owner_shares
-- What the fair share needs to know of owners.
SELECT name, shares, used_core_s, used_at_us FROM owners WHERE name {in:names};

-- name: owners_after
-- Owners by name, with the bytes of their jobs.
SELECT name, shares, used_core_s, used_at_us, COALESCE((SELECT bytes FROM stored WHERE stored.owner = owners.name), 0) AS stored_bytes FROM owners WHERE (name > :after OR :after = '') ORDER BY name LIMIT :limit;

-- name: owner_row
-- One owner, with the bytes of its jobs.
SELECT name, shares, used_core_s, used_at_us, COALESCE((SELECT bytes FROM stored WHERE stored.owner = owners.name), 0) AS stored_bytes FROM owners WHERE name = :name;

-- name: insert_owner
-- The first campaign of an owner.
INSERT INTO owners (name) VALUES (:name) ON CONFLICT (name) DO NOTHING;

-- name: set_owner_used many(name text, used double precision, at_us bigint)
-- Core-seconds that an owner has had, decayed to a time.
UPDATE owners SET used_core_s = v.used, used_at_us = v.at_us FROM v WHERE owners.name = v.name;

-- name: set_owner_shares
-- An operator gives an owner a weight.
UPDATE owners SET shares = :shares WHERE name = :name;
