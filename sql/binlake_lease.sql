-- The process that applies now (host:pid:start:claim), and the end of its lease by this server's clock. A separate
-- table, because the lease is renewed while the transaction that checked the fence still locks the fence's row.
CREATE TABLE IF NOT EXISTS {schema}.binlake_lease (
  task VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY,
  epoch BIGINT UNSIGNED NOT NULL,
  owner VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  lease_until DATETIME(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
