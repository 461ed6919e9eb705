-- The first statement of each transaction adds 1 to `val` of its own row. A process whose lease was taken over finds no
-- row of its epoch and stops (R-02). Each writing connection has a row (worker 0 moves the checkpoint), so that they do
-- not wait for each other; all rows of a task have the same epoch.
CREATE TABLE IF NOT EXISTS {schema}.binlake_fence (
  task VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  worker INT UNSIGNED NOT NULL,
  epoch BIGINT UNSIGNED NOT NULL,
  val BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (task, worker)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
