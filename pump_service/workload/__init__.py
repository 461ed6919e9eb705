"""A source to try the pumps with: writes a load as TiDB would, answers for its TiDB, and knows the end state.

`spec` says what is wanted, `kinds`, `tables`, `catalog` and `generator` make it by seed, `source` is what a TiDB would
know, `runner` writes it, `output` keeps state and recording, `command` is `binlake workload`.
"""
