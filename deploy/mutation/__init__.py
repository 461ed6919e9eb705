"""Mutation testing of the modules that decide (`make mutate`): each small change of their code must fail a test.

A mutant is put into the functions of a running pytest, in a forked process that runs the tests which reach it.
"""
