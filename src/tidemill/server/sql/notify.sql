-- name: insert_subscriptions many(campaign bigint, target text, sites smallint, wants bytea)
-- Subscribe addressees to campaigns; an earlier subscription of the same addressee is replaced.
INSERT INTO subscriptions (campaign, target, sites, wants) SELECT v.campaign, v.target, v.sites, v.wants FROM v WHERE true
ON CONFLICT (campaign, target) DO UPDATE SET sites = excluded.sites, wants = excluded.wants;

-- name: subscriptions_of
-- Who wants what of campaigns.
SELECT campaign, target, wants FROM subscriptions WHERE campaign {in:ids};

-- name: subscriptions_to_sites
-- Who is notified about the sites that work for a campaign.
SELECT campaign, target FROM subscriptions WHERE sites = 1 AND campaign {in:ids};

-- name: subscriptions_any
-- Whether there is any subscription.
SELECT 1 AS found FROM subscriptions LIMIT 1;

-- name: changes_end
-- The number of the newest state change.
SELECT value - 1 AS value FROM meta WHERE name = 'next_change';

-- name: notified
-- Up to which state change notices were gathered.
SELECT value FROM meta WHERE name = 'notified';

-- name: set_notified
-- They were gathered up to here.
UPDATE meta SET value = :value WHERE name = 'notified';

-- name: notices
-- Everything that is gathered or remembered.
SELECT target, subject, what, first_us, last_us, body FROM notices;

-- name: upsert_notices many(target text, subject text, what text, first_us bigint, last_us bigint, body bytea)
-- Notices that have changed.
INSERT INTO notices (target, subject, what, first_us, last_us, body) SELECT v.target, v.subject, v.what, v.first_us, v.last_us, v.body FROM v WHERE true
ON CONFLICT (target, subject, what) DO UPDATE SET first_us = excluded.first_us, last_us = excluded.last_us, body = excluded.body;

-- name: delete_notices many(target text, subject text, what text)
-- They stand in a message.
DELETE FROM notices WHERE (target, subject, what) IN (SELECT v.target, v.subject, v.what FROM v);

-- name: insert_outbox
-- A message to send.
INSERT INTO outbox (channel, target, made_us, state, body) VALUES (:channel, :target, :made_us, 0, :body) RETURNING id;

-- name: outbox_waiting
-- Messages to send by one channel, oldest first, without those to addressees that are left alone for now.
SELECT id, target, made_us, body FROM outbox WHERE state = 0 AND channel = :channel AND NOT target {in:besides} ORDER BY id LIMIT :limit;

-- name: end_outbox
-- A message was sent, or given up.
UPDATE outbox SET state = :state, ended_us = :now_us, error = :error WHERE id = :id AND state = 0;

-- name: outbox_recent
-- When messages to addressees were made.
SELECT target, made_us FROM outbox WHERE made_us > :since;

-- name: prune_outbox
-- What was sent or given up a while ago.
DELETE FROM outbox WHERE state > 0 AND made_us < :before;

-- name: outbox_counts
-- Messages by channel and state, and when the oldest of each was made.
SELECT channel, state, COUNT(*) AS messages, MIN(made_us) AS oldest_us FROM outbox GROUP BY channel, state;

-- name: campaign_events
-- Events done and failed of campaigns.
SELECT id, events_done, events_failed FROM campaigns WHERE id {in:ids};

-- name: failure_examples
-- The newest failures of a campaign, for examples of each class.
SELECT job, event, evidence FROM failures WHERE campaign = :campaign ORDER BY id DESC LIMIT :limit;
