-- The replication that writes a row of `checkpoint`: two replications with the same row would overwrite each other's
-- position.
CREATE TABLE IF NOT EXISTS {schema}.binlake_owner (
  clusterID BIGINT UNSIGNED PRIMARY KEY,
  task VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  config_hash VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  since TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
