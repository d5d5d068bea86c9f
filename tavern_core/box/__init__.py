"""The box: how a process confines itself (SECURITY §4). Pure mechanism, no plugins, no host.

policy.py                     what a box allows, as a value
runtime_paths.py              files that every program needs to run, and its environment
protected_path_splitting.py   granted folders with protected entries
confine.py                    the layers, applied to this process
layer_probe.py                the layers of this machine
rlimits.py, namespaces.py, privileges.py, landlock.py, seccomp.py   one layer each
launcher.py                   a program in a box, with a PID namespace
egress_proxy_socket.py        the only way out of a box with its own network
fork_server.py                a small process that forks others
fork_server_client.py         the host's connection to it
script_fork_job.py            forks a guard for each script
script_spawner.py             starts scripts, and holds their descriptors
process_tree.py               ends a whole process tree
output.py                     bounded reading of the output of scripts
write_broker.py               writes files of the host for programs in boxes
syscalls.py, syscall_numbers.py   raw system calls, and their numbers

Standard library only: most of this runs in processes that are about to drop every right, before any plugin code.
"""
