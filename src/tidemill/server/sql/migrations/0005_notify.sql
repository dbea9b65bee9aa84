-- Who is notified about a campaign, what is gathered for notices, and the messages to send.
CREATE TABLE subscriptions (
  campaign BIGINT NOT NULL, target TEXT NOT NULL, sites SMALLINT NOT NULL, wants {bytes} NOT NULL,
  PRIMARY KEY (campaign, target)
) {clustered};

-- first_us 0: nothing to send now, the row remembers what was sent.
CREATE TABLE notices (
  target TEXT NOT NULL, subject TEXT NOT NULL, what TEXT NOT NULL, first_us BIGINT NOT NULL, last_us BIGINT NOT NULL,
  body {bytes} NOT NULL, PRIMARY KEY (target, subject, what)
) {clustered};

-- state: 0 waits, 1 sent, 2 given up.
CREATE TABLE outbox (
  id {id}, channel TEXT NOT NULL, target TEXT NOT NULL, made_us BIGINT NOT NULL, ended_us BIGINT, state SMALLINT NOT NULL,
  error TEXT NOT NULL DEFAULT '', body {bytes} NOT NULL
);
CREATE INDEX outbox_waiting ON outbox (channel, id) WHERE state = 0;
CREATE INDEX outbox_made ON outbox (made_us);

-- Up to which state change notices were gathered: changes before this version cause no notices.
INSERT INTO meta (name, value) SELECT 'notified', value - 1 FROM meta WHERE name = 'next_change';
