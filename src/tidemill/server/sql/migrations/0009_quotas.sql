-- What quotas count: bytes by owner (300 for each job that was there before), and who named a site that never joined.
CREATE TABLE stored (owner TEXT PRIMARY KEY, bytes BIGINT NOT NULL);
INSERT INTO stored (owner, bytes) SELECT owner, 300 * SUM(jobs) FROM campaigns GROUP BY owner;
ALTER TABLE sites ADD COLUMN named_by TEXT NOT NULL DEFAULT '';
