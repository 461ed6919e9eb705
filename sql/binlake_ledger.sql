-- One row per applied batch, written in the batch's own transaction: a batch with a row is not run again.
-- atomic: 1: the whole segment was one transaction; 2: skipped because its table is set aside (phase 0: a DDL).
-- Rows are kept for the newest two windows of a task.
CREATE TABLE IF NOT EXISTS {schema}.binlake_ledger (
  task VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  lo BIGINT UNSIGNED NOT NULL,
  hi BIGINT UNSIGNED NOT NULL,
  segment INT UNSIGNED NOT NULL,
  phase TINYINT UNSIGNED NOT NULL,
  batch INT UNSIGNED NOT NULL,
  digest CHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  row_count BIGINT UNSIGNED NOT NULL,
  atomic TINYINT UNSIGNED NOT NULL,
  at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (task, lo, hi, segment, phase, batch)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
