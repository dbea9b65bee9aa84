-- Events of a job that their owner has canceled, as intervals, and how many they are.
ALTER TABLE jobs ADD COLUMN n_canceled BIGINT NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN canceled TEXT NOT NULL DEFAULT '';
ALTER TABLE campaigns ADD COLUMN events_canceled BIGINT NOT NULL DEFAULT 0;
ALTER TABLE archived_campaigns ADD COLUMN events_canceled BIGINT NOT NULL DEFAULT 0;
