-- The row under a key after each change, NULL if the change removed it.
-- Answers "What did the row look like at a time?".
-- SELECT key, max_by(image, place) FROM … WHERE db = … AND `table` = … AND commit_ts <= … GROUP BY key
SELECT commit_ts, start_ts, seq, struct(commit_ts, start_ts, seq, kept.part AS part) AS place, db, `table`,
       kept.key AS key, kept.image AS image
FROM (
  SELECT commit_ts, start_ts, seq, db, `table`,
         explode(CASE WHEN new_key IS NULL THEN array(struct(1 AS part, key, after AS image))
                      ELSE array(struct(0 AS part, key, CAST(NULL AS MAP<STRING, STRING>) AS image),
                                 struct(1 AS part, new_key AS key, after AS image)) END) AS kept
  FROM delta.`{lake}/mutation`
)
