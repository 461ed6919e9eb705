"""What a range of commit_ts that has passed can be asked for: to be repaired on the target, or to be undone.

Rebuilding and replaying a range are stages run again (spark_jobs.commands.backfill).
"""
