-- The core-hours of one submitter are found without reading those of all.
CREATE INDEX core_use_owner ON core_use (owner, site, allocation);
