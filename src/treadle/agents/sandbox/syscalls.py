"""Numbers of the system calls that ``seccomp`` decides about.

What is decided, and why, is said there.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["MACHINES", "OUTWARD", "SYSCALLS", "Machine"]


@dataclass(frozen=True)
class Machine:
    """A kind of processor: how the kernel names it to filters, and which column of ``SYSCALLS`` is its own."""

    audit_arch: int
    column: int


MACHINES = MappingProxyType({"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1)})

# Numbers on x86-64 and AArch64; None: the machine has no such call.
SYSCALLS: MappingProxyType[str, tuple[int | None, int | None]] = MappingProxyType(
    {
        # other processes' memory and descriptors
        "ptrace": (101, 117),
        "process_vm_readv": (310, 270),
        "process_vm_writev": (311, 271),
        "process_madvise": (440, 440),
        "pidfd_getfd": (438, 438),
        "kcmp": (312, 272),
        "migrate_pages": (256, 238),
        "move_pages": (279, 239),
        # file systems and namespaces
        "mount": (165, 40),
        "umount2": (166, 39),
        "pivot_root": (155, 41),
        "chroot": (161, 51),
        "open_tree": (428, 428),
        "open_tree_attr": (467, 467),
        "move_mount": (429, 429),
        "fsopen": (430, 430),
        "fsconfig": (431, 431),
        "fsmount": (432, 432),
        "fspick": (433, 433),
        "mount_setattr": (442, 442),
        "setns": (308, 268),
        "name_to_handle_at": (303, 264),
        "open_by_handle_at": (304, 265),
        "fanotify_init": (300, 262),
        "quotactl": (179, 60),
        "quotactl_fd": (443, 443),
        "sysfs": (139, None),
        "lookup_dcookie": (212, 18),
        # the kernel itself
        "bpf": (321, 280),
        "perf_event_open": (298, 241),
        "userfaultfd": (323, 282),
        "add_key": (248, 217),
        "request_key": (249, 218),
        "keyctl": (250, 219),
        "init_module": (175, 105),
        "finit_module": (313, 273),
        "delete_module": (176, 106),
        "kexec_load": (246, 104),
        "kexec_file_load": (320, 294),
        "syslog": (103, 116),
        "uselib": (134, None),
        "modify_ldt": (154, None),
        # the machine
        "iopl": (172, None),
        "ioperm": (173, None),
        "swapon": (167, 224),
        "swapoff": (168, 225),
        "reboot": (169, 142),
        "acct": (163, 89),
        "vhangup": (153, 58),
        "settimeofday": (164, 170),
        "clock_settime": (227, 112),
        "adjtimex": (159, 171),
        "clock_adjtime": (305, 266),
        "sethostname": (170, 161),
        "setdomainname": (171, 162),
        # answered with ENOSYS
        "clone3": (435, 435),
        "openat2": (437, 437),
        "io_uring_setup": (425, 425),
        "io_uring_enter": (426, 426),
        "io_uring_register": (427, 427),
        # judged by their arguments
        "openat": (257, 56),
        "open": (2, None),
        "creat": (85, None),
        "chmod": (90, None),
        "fchmod": (91, 52),
        "fchmodat": (268, 53),
        "fchmodat2": (452, 452),
        "mknod": (133, None),
        "mknodat": (259, 33),
        "ioctl": (16, 29),
        "clone": (56, 220),
        "unshare": (272, 97),
        "personality": (135, 92),
        "socket": (41, 198),
        "socketpair": (53, 199),
        # reaching other processes, or files by name
        "chown": (92, None),
        "fchown": (93, 55),
        "lchown": (94, None),
        "fchownat": (260, 54),
        "setxattr": (188, 5),
        "lsetxattr": (189, 6),
        "fsetxattr": (190, 7),
        "setxattrat": (463, 463),
        "removexattr": (197, 14),
        "lremovexattr": (198, 15),
        "fremovexattr": (199, 16),
        "removexattrat": (466, 466),
        "utime": (132, None),
        "utimes": (235, None),
        "futimesat": (261, None),
        "utimensat": (280, 88),
        "file_setattr": (469, 469),
        "semget": (64, 190),
        "semop": (65, 193),
        "semtimedop": (220, 192),
        "semctl": (66, 191),
        "msgget": (68, 186),
        "msgsnd": (69, 189),
        "msgrcv": (70, 188),
        "msgctl": (71, 187),
        "shmat": (30, 196),
        "shmctl": (31, 195),
        "mq_open": (240, 180),
        "mq_unlink": (241, 181),
        "prlimit64": (302, 261),
        "sched_setaffinity": (203, 122),
        "sched_setattr": (314, 274),
        "sched_setparam": (142, 118),
        "sched_setscheduler": (144, 119),
        "setpriority": (141, 140),
        "ioprio_set": (251, 30),
        # memory that belongs to no process
        "memfd_create": (319, 279),
        "shmget": (29, 194),
    }
)

# Harmless where a program has namespaces of its own.
OUTWARD = (
    "chown",
    "fchown",
    "lchown",
    "fchownat",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "setxattrat",
    "removexattr",
    "lremovexattr",
    "fremovexattr",
    "removexattrat",
    "utime",
    "utimes",
    "futimesat",
    "utimensat",
    "file_setattr",
    "semget",
    "semop",
    "semtimedop",
    "semctl",
    "msgget",
    "msgsnd",
    "msgrcv",
    "msgctl",
    "shmat",
    "shmctl",
    "mq_open",
    "mq_unlink",
    "prlimit64",
    "sched_setaffinity",
    "sched_setattr",
    "sched_setparam",
    "sched_setscheduler",
    "setpriority",
    "ioprio_set",
)
