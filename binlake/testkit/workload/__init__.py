"""A source to try the pumps with: writes a load as TiDB would, answers as its TiDB, and knows the end state.

`spec` describes the load, `catalog` and `generator` generate it from a seed, `source` is what a TiDB would know,
`runner` writes it, `output` stores state and recording, `command` is `binlake workload`.
"""
