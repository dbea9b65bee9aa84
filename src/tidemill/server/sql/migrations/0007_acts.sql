-- What was answered to a cancel or retry that came with a key, so that it counts once; forgotten after a month.
CREATE TABLE acts (
  key TEXT PRIMARY KEY, digest {bytes} NOT NULL, changed BIGINT NOT NULL, unchanged BIGINT NOT NULL, at_us BIGINT NOT NULL
);
CREATE INDEX acts_at ON acts (at_us);
