-- Specifications of jobs that were canceled before they ran are shortened after a while; such a job cannot be retried.
ALTER TABLE specs ADD COLUMN shortened SMALLINT NOT NULL DEFAULT 0;
