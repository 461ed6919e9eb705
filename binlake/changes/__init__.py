"""What a run of row changes comes to: the net change of each key, or every change in commit order."""
