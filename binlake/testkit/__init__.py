"""Equipment to test a deployment with: recorded captures, their replay into pumps, and a load generated from a seed."""
