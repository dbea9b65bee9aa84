-- Whose state changes a row of the feed holds, so that a follower of one campaign reads no others; 0 = of several, as before this version.
ALTER TABLE changes ADD COLUMN campaign BIGINT NOT NULL DEFAULT 0;
CREATE INDEX changes_campaign ON changes (campaign, first);
