-- The hospital: jobs that belong to a site and may be treated at others, kinds by their home and by the data that they read.
-- SQLite cannot change a constraint, so the table of kinds is written again. `home` 0 = none; `data`: datasets, as JSON.
CREATE TABLE kinds_placed (
  id {key}, campaign BIGINT NOT NULL, app TEXT NOT NULL, cores BIGINT NOT NULL, memory_mb BIGINT NOT NULL,
  devices TEXT NOT NULL, nodes BIGINT NOT NULL, ranks BIGINT NOT NULL, home BIGINT NOT NULL DEFAULT 0, data TEXT NOT NULL DEFAULT '',
  UNIQUE (campaign, app, cores, memory_mb, devices, nodes, ranks, home, data)
);
INSERT INTO kinds_placed SELECT id, campaign, app, cores, memory_mb, devices, nodes, ranks, 0, '' FROM kinds;
DROP TABLE kinds;
ALTER TABLE kinds_placed RENAME TO kinds;
CREATE INDEX kinds_app ON kinds (app, id);

-- `ward`: where a job is treated, 0 = nowhere; a job in ward 3 that no site has bound has `place` -3. `waits_us`: since when it
-- waits, where that is later than its creation.
ALTER TABLE jobs ADD COLUMN ward BIGINT NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN moves BIGINT NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN waits_us BIGINT NOT NULL DEFAULT 0;

CREATE TABLE wards (id {id}, name TEXT NOT NULL UNIQUE);

-- Each stay of a job in a ward. outcome: 0 there now, 1 cured, 2 ended without success, 3 canceled, 4 went home.
CREATE TABLE stays (
  job BIGINT NOT NULL, number BIGINT NOT NULL, ward BIGINT NOT NULL, cure TEXT NOT NULL, why TEXT NOT NULL,
  admitted_us BIGINT NOT NULL, outcome SMALLINT NOT NULL DEFAULT 0, site BIGINT NOT NULL DEFAULT 0, ended_us BIGINT,
  PRIMARY KEY (job, number)
) {clustered};

-- What each source of downtimes said last, and the sites that are down now: until when, and why.
CREATE TABLE calendars (source TEXT PRIMARY KEY, read_us BIGINT NOT NULL, error TEXT NOT NULL, body {bytes} NOT NULL);
CREATE TABLE down_sites (site {key}, until_us BIGINT NOT NULL, reason TEXT NOT NULL);
