-- Times of payloads of jobs that ask for it (`timed`), as they came with each sync; `count`: how many `body` holds.
CREATE TABLE payload_times (id {id}, job BIGINT NOT NULL, site BIGINT NOT NULL, at_us BIGINT NOT NULL, count BIGINT NOT NULL, body {bytes} NOT NULL);
CREATE INDEX payload_times_job ON payload_times (job, id);
CREATE INDEX payload_times_at ON payload_times (at_us);
