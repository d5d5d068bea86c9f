"""The box: what a process may still do once it has confined itself (SECURITY §4). Pure mechanism, no plugins, no host.

policy.py     what a box lets through, as a value         paths.py    files that every program needs to run at all
holes.py      granted folders that hold something shut
confine.py    the layers, applied to this very process     layers.py    which layers this machine has
rlimits.py  namespaces.py  privileges.py  landlock.py  seccomp.py       one layer each
program.py    a program in a box, with a PID namespace     run.py       the same, as a command
own_places.py                    what such a program has for itself: /proc, /dev/shm
fork_server.py    a small process that forks others, whatever for   fork_server_client.py    the host's line to it
script_job.py     forks a guard for each script                     script_client.py         starts scripts, and holds their descriptors
subreaper.py      leaves nothing of a process tree behind           output.py                bounded reading of what scripts say
syscalls.py  syscall_numbers.py                                       raw system calls, and their numbers

Standard library only: nearly all of this runs inside processes that are about to lose every right, before any plugin's code.
"""
