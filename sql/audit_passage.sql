-- One row per stage and window that it processed. Answers "Which run landed, merged, applied this commit_ts?".
-- WHERE lo < 470614429184294913 AND hi >= 470614429184294913 ORDER BY at
SELECT stage, sink, lo, hi, timestamp_millis(shiftright(hi, 18)) AS hi_time, run_id, timestamp_millis(at_ms) AS at,
       `rows`, seconds
FROM delta.`{lake}/window`
WHERE state IN ('done', 'already') AND hi > lo
