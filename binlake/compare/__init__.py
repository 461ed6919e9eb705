"""The values and definitions of every server in one canonical form (docs/understand/equality.md).

They are independent of the pipeline: they come from plain SQL and use none of the pipeline's decoders.
"""
