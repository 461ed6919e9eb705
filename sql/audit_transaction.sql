-- One row per landed transaction or DDL. Answers "Which transaction was it, and which pumps delivered it?".
SELECT b.commit_ts, timestamp_millis(shiftright(b.commit_ts, 18)) AS commit_time, b.start_ts, b.kind, b.schema_version,
       collect_set(b.pump) AS pumps, sum(length(b.payload)) AS bytes
FROM delta.`{lake}/binlog` b
WHERE b.commit_ts <= (SELECT max(hi) FROM delta.`{lake}/window` WHERE stage = 'land' AND state = 'done')
GROUP BY b.commit_ts, b.start_ts, b.kind, b.schema_version
