-- The commitTS that Binlake wrote last to a row of `checkpoint`, in the same transaction. A row with another commitTS was
-- moved by another hand: Binlake does not use it until `binlake checkpoint adopt`.
CREATE TABLE IF NOT EXISTS {schema}.binlake_position (
  clusterID BIGINT UNSIGNED PRIMARY KEY,
  commitTS BIGINT UNSIGNED NOT NULL,
  at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB;
