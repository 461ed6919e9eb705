-- The original's table, two columns and no more: a drainer's row is readable here, and ours is readable for a drainer.
-- checkPoint is JSON: {"consistent":…,"commitTS":…,"ts-map":{…},"schema-version":…}.
CREATE TABLE IF NOT EXISTS {schema}.checkpoint (
  clusterID BIGINT UNSIGNED PRIMARY KEY,
  checkPoint MEDIUMTEXT
) ENGINE = InnoDB;
