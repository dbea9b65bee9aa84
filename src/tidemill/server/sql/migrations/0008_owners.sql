-- The key of a submission is its owner's: others may use the same. SQLite cannot change a key: a new table.
CREATE TABLE submits_owned (
  owner TEXT NOT NULL, key TEXT NOT NULL, digest {bytes} NOT NULL, campaign TEXT NOT NULL, first_job BIGINT NOT NULL,
  count BIGINT NOT NULL, subject TEXT NOT NULL DEFAULT '', credential TEXT NOT NULL DEFAULT '', remark TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (owner, key)
);
INSERT INTO submits_owned (owner, key, digest, campaign, first_job, count, subject, credential, remark)
SELECT COALESCE((SELECT owner FROM campaigns WHERE campaigns.name = submits.campaign), ''),
  key, digest, campaign, first_job, count, subject, credential, remark FROM submits;
DROP TABLE submits;
ALTER TABLE submits_owned RENAME TO submits;
CREATE INDEX submits_first ON submits (first_job);

-- What owners have had, for the fair share between them; all start equal. Operators give their weights.
CREATE TABLE owners (
  name TEXT PRIMARY KEY, shares DOUBLE PRECISION NOT NULL DEFAULT 1, used_core_s DOUBLE PRECISION NOT NULL DEFAULT 0,
  used_at_us BIGINT NOT NULL DEFAULT 0
);
INSERT INTO owners (name) SELECT DISTINCT owner FROM campaigns;
