-- DELETE 0 delete rows=2 expect=[-1] verify=0
DELETE FROM `d`.`pairs` WHERE (`a`=1.100000023841858e0 AND `k`='x\\y') OR (`a`=2.0e0 AND `k`='ü');
-- WRITE 1 replace rows=2 expect=[-1] verify=2
REPLACE INTO `d`.`pairs` (`a`,`k`,`v`) VALUES (1.1e0,'x\\y',1),(2e0,'ü',NULL);
SELECT COUNT(*) FROM `d`.`pairs` WHERE (`a`=1.100000023841858e0 AND `k`='x\\y' AND CAST(CONVERT(`k` USING utf8mb4) AS BINARY)='x\\y') OR (`a`=2.0e0 AND `k`='ü' AND CAST(CONVERT(`k` USING utf8mb4) AS BINARY)='ü');
