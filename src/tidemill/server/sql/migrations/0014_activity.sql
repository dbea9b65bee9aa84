-- What ran when: of campaigns (job = 0) and of their larger jobs, in intervals of a power of two seconds (`step_s`). Bounded rows of each.
CREATE TABLE activity (campaign BIGINT NOT NULL, job BIGINT NOT NULL, at BIGINT NOT NULL, done BIGINT NOT NULL, failed BIGINT NOT NULL, busy_us BIGINT NOT NULL, cpu_us BIGINT NOT NULL, longest_us BIGINT NOT NULL, PRIMARY KEY (campaign, job, at));
CREATE TABLE activity_steps (campaign BIGINT NOT NULL, job BIGINT NOT NULL, step_s BIGINT NOT NULL, lines BIGINT NOT NULL, PRIMARY KEY (campaign, job));
