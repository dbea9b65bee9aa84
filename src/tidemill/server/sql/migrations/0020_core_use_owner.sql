-- A submitter reads the own core-hours: no others' rows are read for it.
CREATE INDEX core_use_owner ON core_use (owner, site, allocation);
