-- The table of the original drainer, with exactly its two columns: Binlake and a drainer can read each other's row.
-- checkPoint is JSON: {"consistent":…,"commitTS":…,"ts-map":{…},"schema-version":…}.
CREATE TABLE IF NOT EXISTS {schema}.checkpoint (
  clusterID BIGINT UNSIGNED PRIMARY KEY,
  checkPoint MEDIUMTEXT
) ENGINE = InnoDB;
