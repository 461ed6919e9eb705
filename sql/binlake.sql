-- Binlake's own tables beside the checkpoint. All of them InnoDB: they change in the transactions that they guard.

-- Who may write (hazards R-02). The row of worker -1 is the lease: renewed on its own, never held by a transaction.
-- The row of worker 0 is the fence: the first statement of every transaction adds 1 to val at its epoch, so that a
-- take-over, which adds 1 to epoch, waits for the transaction in flight and refuses the next one.
CREATE TABLE IF NOT EXISTS `binlake_fence` (
    task VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    worker INT NOT NULL,
    epoch BIGINT NOT NULL,
    val BIGINT NOT NULL,
    owner VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    lease_until DATETIME(6) NOT NULL,
    PRIMARY KEY (task, worker)
) ENGINE = InnoDB;

-- One row per applied batch, in the transaction of the batch (invariant 9). Phase 0 is the DDL of the segment,
-- 1 and 2 are batches, 3 says that the whole segment is there.
CREATE TABLE IF NOT EXISTS `binlake_ledger` (
    task VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    hi BIGINT UNSIGNED NOT NULL,
    segment INT NOT NULL,
    phase INT NOT NULL,
    batch INT NOT NULL,
    digest CHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    batch_rows BIGINT NOT NULL,
    atomic TINYINT NOT NULL,
    epoch BIGINT NOT NULL,
    applied_at DATETIME(6) NOT NULL,
    PRIMARY KEY (task, hi, segment, phase, batch)
) ENGINE = InnoDB;

-- Whose checkpoint row it is (hazards R-23), the window that is open or was last, and the DDL in flight (R-04).
-- exit_ts: below it the target may hold changes above commitTS while consistent is false (R-16, R-22).
CREATE TABLE IF NOT EXISTS `binlake_progress` (
    cluster_id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
    task VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    is_open TINYINT NOT NULL,
    lo BIGINT UNSIGNED NOT NULL,
    hi BIGINT UNSIGNED NOT NULL,
    exit_ts BIGINT UNSIGNED NOT NULL,
    digest CHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    config_hash VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    manifest MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    ddl_ts BIGINT UNSIGNED NULL,
    ddl_before LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    ddl_sql LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    changed_at DATETIME(6) NOT NULL
) ENGINE = InnoDB;
