-- Payloads that span nodes: their width belongs to the kind. SQLite cannot change a constraint, so the table is made anew.
CREATE TABLE kinds_wide (
  id {key}, campaign BIGINT NOT NULL, app TEXT NOT NULL, cores BIGINT NOT NULL, memory_mb BIGINT NOT NULL,
  devices TEXT NOT NULL, nodes BIGINT NOT NULL, ranks BIGINT NOT NULL,
  UNIQUE (campaign, app, cores, memory_mb, devices, nodes, ranks)
);
INSERT INTO kinds_wide SELECT id, campaign, app, cores, memory_mb, devices, 0, 0 FROM kinds;
DROP TABLE kinds;
ALTER TABLE kinds_wide RENAME TO kinds;
