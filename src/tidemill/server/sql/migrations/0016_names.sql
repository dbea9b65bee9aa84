-- Names of campaigns belong to their owners: others may use the same. SQLite cannot change a constraint, so both tables are written again.
CREATE TABLE campaigns_named (
  id {id}, name TEXT NOT NULL, owner TEXT NOT NULL, shares DOUBLE PRECISION NOT NULL, created_us BIGINT NOT NULL,
  jobs BIGINT NOT NULL DEFAULT 0, events BIGINT NOT NULL DEFAULT 0,
  events_done BIGINT NOT NULL DEFAULT 0, events_failed BIGINT NOT NULL DEFAULT 0,
  payloads BIGINT NOT NULL DEFAULT 0, wall_us BIGINT NOT NULL DEFAULT 0, setup_us BIGINT NOT NULL DEFAULT 0,
  user_us BIGINT NOT NULL DEFAULT 0, system_us BIGINT NOT NULL DEFAULT 0, rss_kb BIGINT NOT NULL DEFAULT 0,
  read_bytes BIGINT NOT NULL DEFAULT 0, write_bytes BIGINT NOT NULL DEFAULT 0,
  used_core_s DOUBLE PRECISION NOT NULL DEFAULT 0, used_at_us BIGINT NOT NULL DEFAULT 0,
  first_started_us BIGINT, last_ended_us BIGINT, batch BIGINT NOT NULL DEFAULT 0, UNIQUE (name, owner)
);
INSERT INTO campaigns_named (id, name, owner, shares, created_us, jobs, events, events_done, events_failed, payloads, wall_us, setup_us, user_us, system_us, rss_kb, read_bytes, write_bytes, used_core_s, used_at_us, first_started_us, last_ended_us, batch)
SELECT id, name, owner, shares, created_us, jobs, events, events_done, events_failed, payloads, wall_us, setup_us, user_us, system_us, rss_kb, read_bytes, write_bytes, used_core_s, used_at_us, first_started_us, last_ended_us, batch FROM campaigns;
DROP TABLE campaigns;
ALTER TABLE campaigns_named RENAME TO campaigns;
CREATE INDEX campaigns_owner ON campaigns (owner, id);
CREATE INDEX campaigns_ended ON campaigns (last_ended_us, id) WHERE last_ended_us IS NOT NULL;
CREATE INDEX campaigns_batch ON campaigns (batch) WHERE batch > 0;

CREATE TABLE archived_named (
  id {key}, batch BIGINT NOT NULL, name TEXT NOT NULL, owner TEXT NOT NULL, shares DOUBLE PRECISION NOT NULL,
  created_us BIGINT NOT NULL, jobs BIGINT NOT NULL, events BIGINT NOT NULL, events_done BIGINT NOT NULL,
  events_failed BIGINT NOT NULL, payloads BIGINT NOT NULL, wall_us BIGINT NOT NULL, setup_us BIGINT NOT NULL,
  user_us BIGINT NOT NULL, system_us BIGINT NOT NULL, rss_kb BIGINT NOT NULL, read_bytes BIGINT NOT NULL,
  write_bytes BIGINT NOT NULL, first_started_us BIGINT, last_ended_us BIGINT, states TEXT NOT NULL, failures TEXT NOT NULL,
  UNIQUE (name, owner)
);
INSERT INTO archived_named (id, batch, name, owner, shares, created_us, jobs, events, events_done, events_failed, payloads, wall_us, setup_us, user_us, system_us, rss_kb, read_bytes, write_bytes, first_started_us, last_ended_us, states, failures)
SELECT id, batch, name, owner, shares, created_us, jobs, events, events_done, events_failed, payloads, wall_us, setup_us, user_us, system_us, rss_kb, read_bytes, write_bytes, first_started_us, last_ended_us, states, failures FROM archived_campaigns;
DROP TABLE archived_campaigns;
ALTER TABLE archived_named RENAME TO archived_campaigns;
CREATE INDEX archived_campaigns_owner ON archived_campaigns (owner, id);
CREATE INDEX archived_campaigns_batch ON archived_campaigns (batch);

-- What is gathered for an addressee names the campaign with its owner.
UPDATE notices SET subject = (SELECT campaigns.owner || '/' || campaigns.name FROM campaigns WHERE campaigns.name = notices.subject)
WHERE what <> 'site' AND EXISTS (SELECT 1 FROM campaigns WHERE campaigns.name = notices.subject);
