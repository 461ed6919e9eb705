-- A shop whose sales are spread over independent shards. Each shard runs this file with its number as {shard} and its
-- own range of ids, which begins after {first} (MISSION S4-53).
-- The database has the same name on all shards. Routes merge all `sale_*` into the table `store.sale`; `item_*` stay
-- separate.

-- step: base
CREATE DATABASE store CHARACTER SET utf8mb4;
CREATE TABLE store.sale_{shard} (
  id BIGINT NOT NULL PRIMARY KEY,
  customer VARCHAR(40) NOT NULL,
  amount DECIMAL(12,2) NOT NULL,
  state ENUM('new','paid','sent') NOT NULL DEFAULT 'new',
  at DATETIME(3) NOT NULL
) DEFAULT CHARSET=utf8mb4;
CREATE TABLE store.item_{shard} (sale BIGINT NOT NULL, line INT NOT NULL, what VARCHAR(40), PRIMARY KEY (sale, line));

-- step: load
INSERT INTO store.sale_{shard} VALUES
  ({first} + 1, 'Änne', 10.50, 'new', '2026-11-01 10:00:00.123'), ({first} + 2, 'Bob', 0.99, 'paid', '2026-11-02 11:00:00'),
  ({first} + 3, 'Chloé', 1e6, 'sent', '2026-11-03 12:30:00'), ({first} + 4, '丁', 7, 'new', '2026-11-04 00:00:00');
INSERT INTO store.item_{shard} VALUES ({first} + 1, 1, 'tea'), ({first} + 1, 2, 'cup'), ({first} + 2, 1, NULL);
UPDATE store.sale_{shard} SET state = 'paid', amount = amount + 1 WHERE state = 'new';
DELETE FROM store.sale_{shard} WHERE id = {first} + 4;
START TRANSACTION;
INSERT INTO store.sale_{shard} VALUES ({first} + 5, 'Eve', 3, 'new', '2026-11-05 08:00:00');
INSERT INTO store.item_{shard} VALUES ({first} + 5, 1, 'pen');
UPDATE store.sale_{shard} SET id = {first} + 6 WHERE id = {first} + 2;
COMMIT;

-- step: widen
ALTER TABLE store.sale_{shard} ADD COLUMN note VARCHAR(20) NOT NULL DEFAULT 'none';

-- step: after
INSERT INTO store.sale_{shard} (id, customer, amount, at) VALUES ({first} + 7, 'Fay', 5.55, '2026-11-06 09:00:00');
UPDATE store.sale_{shard} SET state = 'sent' WHERE id = {first} + 1;
