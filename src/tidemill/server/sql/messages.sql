-- name: followers
-- Who follows the feed of changes, and the last number that was sent.
SELECT name, value FROM meta WHERE name LIKE 'follower/%';

-- name: slowest_follower
-- What must not be pruned yet.
SELECT MIN(value) AS value FROM meta WHERE name LIKE 'follower/%' OR name = 'notified';

-- name: set_follower
-- A follower was sent changes up to a number.
INSERT INTO meta (name, value) VALUES (:name, :position) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: delete_follower
-- A follower that no longer exists.
DELETE FROM meta WHERE name = :name;

-- name: next_change
-- The number that the next change will have.
SELECT value FROM meta WHERE name = 'next_change';

-- name: act_by_key
-- What was answered to this key.
SELECT digest, changed, unchanged FROM acts WHERE key = :key;

-- name: insert_act
-- Remember what is answered to a key.
INSERT INTO acts (key, digest, changed, unchanged, at_us) VALUES (:key, :digest, :changed, :unchanged, :now_us);

-- name: prune_acts
-- Answers that will not be asked for again.
DELETE FROM acts WHERE at_us < :before_us;
