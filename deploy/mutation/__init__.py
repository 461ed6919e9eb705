"""Mutation testing of the modules with critical decisions (`make mutate`): each small code change must fail a test.

A mutant replaces code of a running pytest, in a forked process that runs the tests which reach it.
"""
