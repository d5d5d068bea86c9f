"""Numbers of system calls by name: (x86_64, aarch64); None where the architecture has no such call.

From the kernel's own tables (`asm/unistd_64.h`, `asm-generic/unistd.h`). From 424 on the architectures agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LAST: Final = 469
"""The last reviewed number (file_setattr, Linux 6.17). Later calls are refused."""

UNUSED: Final = (((336, 423),), ((244, 259), (295, 423)))
"""For x86_64 and aarch64: first and last of lower numbers that were unused at the review."""

NUMBERS: Final[Mapping[str, tuple[int | None, int | None]]] = {
    # processes
    "fork": (57, None), "vfork": (58, None), "clone": (56, 220), "clone3": (435, 435), "execve": (59, 221),
    "execveat": (322, 281),
    # signals
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "pidfd_getfd": (438, 438), "kcmp": (312, 272),
    "get_robust_list": (274, 100), "migrate_pages": (256, 238), "move_pages": (279, 239), "mbind": (237, 235),
    "set_mempolicy": (238, 237), "set_mempolicy_home_node": (450, 450), "prlimit64": (302, 261),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274), "sched_setaffinity": (203, 122),
    # sockets
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242),
    # shared memory and queues
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183), "mq_notify": (244, 184), "mq_getsetattr": (245, 185),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    # metadata
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "utimensat": (280, 88), "futimesat": (261, None), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469), "getxattr": (191, 8),
    "lgetxattr": (192, 9), "fgetxattr": (193, 10), "listxattr": (194, 11), "llistxattr": (195, 12),
    "flistxattr": (196, 13), "getxattrat": (464, 464), "listxattrat": (465, 465), "mknod": (133, None),
    "mknodat": (259, 33),
    # files by path
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37), "truncate": (76, 45),
    # files by other means
    "open": (2, None), "openat": (257, 56), "openat2": (437, 437), "creat": (85, None),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "inotify_add_watch": (254, 27),
    "inotify_init": (253, None), "inotify_init1": (294, 26), "fanotify_init": (300, 262), "fanotify_mark": (301, 263),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "move_mount": (429, 429),
    "open_tree": (428, 428), "open_tree_attr": (467, 467), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "statmount": (457, 457),
    "listmount": (458, 458), "setns": (308, 268), "unshare": (272, 97), "sethostname": (170, 161),
    "setdomainname": (171, 162), "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    # kernel
    "bpf": (321, 280), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_setup": (206, 0), "io_submit": (209, 2), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "create_module": (174, None), "query_module": (178, None), "get_kernel_syms": (177, None), "reboot": (169, 142),
    "syslog": (103, 116), "acct": (163, 89), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "iopl": (172, None), "ioperm": (173, None),
    "modify_ldt": (154, None), "vhangup": (153, 58), "nfsservctl": (180, 42), "lookup_dcookie": (212, 18),
    "uselib": (134, None), "_sysctl": (156, None), "sysfs": (139, None), "ustat": (136, None),
    "afs_syscall": (183, None), "vserver": (236, None), "personality": (135, 92), "remap_file_pages": (216, 234),
    "seccomp": (317, 277), "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446), "lsm_set_self_attr": (460, 460),
    # arguments matter
    "ioctl": (16, 29), "fcntl": (72, 25), "prctl": (157, 167), "mmap": (9, 222),
}  # fmt: skip
