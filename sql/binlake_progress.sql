-- Progress of the open window. open_lo, open_hi, manifest: NULL if no window is open. exit_ts: the greatest hi whose
-- apply has started (safemode_exit_point). segment: the next one to apply. ddl_state of that segment: '', 'intent',
-- 'done'. An intent stores the statement, the digest of the definitions before it, and the definitions expected after it.
CREATE TABLE IF NOT EXISTS {schema}.binlake_progress (
  task VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY,
  clusterID BIGINT UNSIGNED NOT NULL,
  open_lo BIGINT UNSIGNED,
  open_hi BIGINT UNSIGNED,
  manifest CHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  exit_ts BIGINT UNSIGNED NOT NULL,
  segment INT UNSIGNED NOT NULL,
  ddl_state VARCHAR(8) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  ddl_commit_ts BIGINT UNSIGNED,
  ddl_sql LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  ddl_before CHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  ddl_expected LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
