-- A site that an operator has drained gets no leases until it is resumed.
ALTER TABLE sites ADD COLUMN drained SMALLINT NOT NULL DEFAULT 0;
ALTER TABLE sites ADD COLUMN drain_reason TEXT NOT NULL DEFAULT '';
