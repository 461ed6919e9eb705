-- One row per row change. Answers "What happened to this row?" and "What did this transaction change?".
-- WHERE db = … AND `table` = … AND (key = '["7"]' OR new_key = '["7"]') ORDER BY commit_ts, start_ts, seq
SELECT commit_ts, timestamp_millis(shiftright(commit_ts, 18)) AS commit_time, commit_date, start_ts, seq, schema_version,
       db, `table`, op, key, new_key, before, after, source_db, source_table
FROM delta.`{lake}/mutation`
