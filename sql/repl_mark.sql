-- The drainer's mark table (tidb-binlog 5.11), on both sides of a bidirectional replication. The first write of each
-- applied transaction adds 1 to `val` of its channel, and the opposite side skips transactions with such a write.
CREATE TABLE IF NOT EXISTS {table} (
  id BIGINT NOT NULL,
  channel_id BIGINT NOT NULL DEFAULT 0,
  val BIGINT DEFAULT 0,
  channel_info VARCHAR(64),
  PRIMARY KEY (id, channel_id)
) ENGINE = InnoDB;
