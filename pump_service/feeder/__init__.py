"""The feeder: reads the binary logs of MySQL and MariaDB servers and publishes each transaction to the pumps."""
