"""Workflow algorithms: which slots connect, in which order nodes run, what is wrong, how a workflow is edited and drawn.

Pure: values in, values out. Nothing here reads files, knows plugins or runs a node.
"""
