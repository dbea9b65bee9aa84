-- Deliveries in parts: what is kept at a site, what is delivered, the state that a job ends in. What older servers kept of
-- a job that failed is there only if its delivery failed; of other jobs that failed or were canceled nothing was kept.
ALTER TABLE jobs ADD COLUMN kept SMALLINT NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN delivered TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN sent TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN deliveries BIGINT NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN ends SMALLINT NOT NULL DEFAULT 0;
ALTER TABLE outputs ADD COLUMN events TEXT NOT NULL DEFAULT '';
UPDATE jobs SET kept = 1 WHERE outputs = 1 AND home = 1 AND done <> '' AND (state IN (0, 1) OR (state = 4 AND n_done + n_failed = events AND reason LIKE 'outputs could not be delivered%'));
UPDATE jobs SET delivered = done, deliveries = 1 WHERE outputs = 1 AND state = 3;
CREATE INDEX jobs_kept ON jobs (kind, id) WHERE kept = 1;
