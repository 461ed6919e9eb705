-- What Binlake wrote last to `binlake_progress` about windows: the replication, the open window's bounds, segment and
-- manifest, and exit_ts. A row of `binlake_progress` that says something else (but a greater exit_ts, which only makes
-- writes safer) was changed by another hand: Binlake opens and continues no window until `binlake checkpoint adopt`.
CREATE TABLE IF NOT EXISTS {schema}.binlake_opened (
  clusterID BIGINT UNSIGNED PRIMARY KEY,
  task VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  progress VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  exit_ts BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB;
