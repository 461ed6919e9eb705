-- The first statement of each transaction adds 1 to `val` of its epoch: who was taken over finds no row (R-02).
CREATE TABLE IF NOT EXISTS {schema}.binlake_fence (
  task VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY,
  epoch BIGINT UNSIGNED NOT NULL,
  val BIGINT UNSIGNED NOT NULL
) DEFAULT CHARSET = utf8mb4;
