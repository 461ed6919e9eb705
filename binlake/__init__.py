"""The core of Binlake: from the bytes of a binlog to rows at a target; no Spark, no Airflow."""

import os

# gRPC's own fork handlers abort a process that forks while calls run (seen when Spark's JVM is started); whoever forks
# here starts another program at once and needs none.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
