-- DELETE 0 delete rows=3 expect=[1, 2] verify=0
DELETE FROM `d`.`heap` WHERE `a` <=> 1.100000023841858e0 AND (`j` IS NOT NULL AND (JSON_EQUALS(`j`, '{"x": [1, "é"]}') OR CAST(`j` AS BINARY) = CAST('{"x": [1, "é"]}' AS BINARY))) AND `s` <=> 'a' AND CAST(CONVERT(`s` USING utf8mb4) AS BINARY) <=> CAST('a' AS BINARY) AND `n` IS NULL LIMIT 1;
DELETE FROM `d`.`heap` WHERE `a` IS NULL AND `j` IS NULL AND `s` IS NULL AND `n` <=> 7 LIMIT 2;
-- WRITE 1 insert rows=3 expect=[3] verify=0
INSERT INTO `d`.`heap` (`a`,`j`,`s`,`n`) VALUES (1.1e0,'{"x": [1, "é"]}','a',NULL),(1.1e0,'{"x": [1, "é"]}','a',NULL),(NULL,NULL,NULL,7);
