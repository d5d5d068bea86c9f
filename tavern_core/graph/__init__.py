"""Workflow algorithms: compatible slots, order of nodes, problems, edits and pictures.

Pure: values in, values out. Nothing here reads files, knows plugins or runs a node.
"""
