"""Operations on a past range of commit_ts: repairing it on the target, or undoing it.

Rebuilding and replaying a range rerun the stages (binlake.spark_jobs.commands.backfill).
"""
