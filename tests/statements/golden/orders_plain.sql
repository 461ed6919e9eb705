-- WRITE 0 upsert rows=2 expect=[-1] verify=2
INSERT INTO `d`.`or``ders` (`id`,`c`,`amount`,`f`,`b`,`h`,`at`) VALUES (1,'it\'s',1.10,1.1e0,0x0005,X'00FF',NULL),(2,NULL,-3.00,-0e0,0x03FF,X'','2020-02-29 01:02:03.004') ON DUPLICATE KEY UPDATE `id`=VALUES(`id`),`c`=VALUES(`c`),`amount`=VALUES(`amount`),`f`=VALUES(`f`),`b`=VALUES(`b`),`h`=VALUES(`h`),`at`=VALUES(`at`);
SELECT COUNT(*) FROM `d`.`or``ders` WHERE `id` IN (1,2);
