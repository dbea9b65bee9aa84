-- What allocations held by the batch system's count, and what payloads of each campaign and application used of them.
ALTER TABLE placements ADD COLUMN held_cores BIGINT NOT NULL DEFAULT 0;
ALTER TABLE placements ADD COLUMN held_gpus BIGINT NOT NULL DEFAULT 0;
CREATE TABLE core_use (
  site BIGINT NOT NULL, allocation TEXT NOT NULL, owner TEXT NOT NULL, campaign TEXT NOT NULL, app TEXT NOT NULL,
  core_us BIGINT NOT NULL, at_us BIGINT NOT NULL, PRIMARY KEY (site, allocation, owner, campaign, app)
) {clustered};
CREATE INDEX core_use_at ON core_use (at_us);
