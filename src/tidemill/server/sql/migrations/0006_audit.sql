-- Changes on their way into the audit log, numbered; gone once it holds them. `audit_lines`: the log's known length.
CREATE TABLE audit_pending (id {key}, at_us BIGINT NOT NULL, body {bytes} NOT NULL);
INSERT INTO meta (name, value) VALUES ('next_audit', 1), ('audit_lines', 0);

-- Whose credential brought which jobs.
ALTER TABLE submits ADD COLUMN subject TEXT NOT NULL DEFAULT '';
ALTER TABLE submits ADD COLUMN credential TEXT NOT NULL DEFAULT '';
ALTER TABLE submits ADD COLUMN remark TEXT NOT NULL DEFAULT '';
CREATE INDEX submits_first ON submits (first_job);
CREATE INDEX campaigns_owner ON campaigns (owner, id);

-- Allocations of the last year: on which nodes, and when. `hosts`: names with a blank before and behind each.
CREATE TABLE placements (
  site BIGINT NOT NULL, name TEXT NOT NULL, batch_id TEXT NOT NULL, hosts TEXT NOT NULL, started_us BIGINT NOT NULL,
  ended_us BIGINT NOT NULL, at_us BIGINT NOT NULL, PRIMARY KEY (site, name)
) {clustered};
CREATE INDEX placements_batch ON placements (batch_id);
CREATE INDEX placements_started ON placements (started_us);

-- What pilots of an allocation have recorded: jobs and events, as they came with each sync.
CREATE TABLE ran (id {id}, site BIGINT NOT NULL, allocation TEXT NOT NULL, at_us BIGINT NOT NULL, body {bytes} NOT NULL);
CREATE INDEX ran_allocation ON ran (site, allocation);
CREATE INDEX ran_at ON ran (at_us);

-- Since when a site's application is what it is.
CREATE TABLE approved (
  site BIGINT NOT NULL, app TEXT NOT NULL, since_us BIGINT NOT NULL, version TEXT NOT NULL, digest TEXT NOT NULL,
  PRIMARY KEY (site, app, since_us)
) {clustered};
