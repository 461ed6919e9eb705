-- One row per table that is set aside: its changes are skipped until `binlake table back` brings it back.
-- since: all changes of the table up to and including this commit_ts are applied. by_whom: command or policy.
CREATE TABLE IF NOT EXISTS {schema}.binlake_aside (
  clusterID BIGINT UNSIGNED NOT NULL,
  db VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  tbl VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  task VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  since BIGINT UNSIGNED NOT NULL,
  by_whom VARCHAR(8) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  reason TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (clusterID, db, tbl)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
