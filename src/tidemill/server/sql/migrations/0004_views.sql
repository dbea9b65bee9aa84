-- What people see of sites: the tide by minutes, pruned after a month, and the latest of everything else.
CREATE TABLE tides (
  site BIGINT NOT NULL, minute BIGINT NOT NULL, regular DOUBLE PRECISION NOT NULL, ours DOUBLE PRECISION NOT NULL,
  idle DOUBLE PRECISION NOT NULL, away DOUBLE PRECISION NOT NULL, PRIMARY KEY (site, minute)
) {clustered};
CREATE TABLE site_views (site {key}, at_us BIGINT NOT NULL, body {bytes} NOT NULL);

-- Allocations of one state, and how many there are of each.
CREATE INDEX allocations_state ON allocations (site, state, at_us, nodes);

-- Jobs by the beginning of their name, whatever the database's collation, and those that ended last.
DROP INDEX jobs_name;
CREATE INDEX jobs_name ON jobs (name {binary}, id) WHERE name <> '';
CREATE INDEX jobs_ended ON jobs (ended_us, id) WHERE ended_us IS NOT NULL;
