"""What hostile code tries, as rows: each is a few lines of Python that raise an OSError when the system refuses them.

In reach of each row (`arena.py`): `secret` (a file of somebody else), `outside` (their folder), `work` (its own folder), `tcp`, `udp`
(ports of a server of the test), `unix`, `abstract` (its sockets), `victim` (a process of the same user), `held` (a descriptor
that was open before), `syscall(number, ...)`, `machine_code(bytes)`, `NR` (numbers of system calls).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Control = Literal["works", "root", "perhaps", "never"]
"""Whether the attack works without a box: for everybody, for root only, on some systems; never: not tried, for it would harm."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One thing to try."""

    code: str
    control: Control = "works"


def _call(name: str, *arguments: object) -> str:
    return f"syscall(NR[{name!r}], {', '.join(map(str, arguments))})"


FILES: Final = {
    "read a file of somebody else": Attack("open(secret).read()"),
    "read it through its directory": Attack("os.open('secret', os.O_RDONLY, dir_fd=os.open(outside, os.O_RDONLY))"),
    "read it through O_PATH and /proc": Attack("open(f'/proc/self/fd/{os.open(secret, os.O_PATH)}').read()"),
    "read it through the root of a process": Attack("open('/proc/self/root' + secret).read()"),
    "read it through openat2": Attack(_call("openat2", -100, "secret.encode()", "b'\\0' * 24", 24)),
    "read it through a link of its own": Attack("os.symlink(secret, work + '/s'); open(work + '/s').read()"),
    "read it through a hard link": Attack("os.link(secret, work + '/h'); open(work + '/h').read()"),
    "move it into its own folder": Attack("os.rename(secret + '2', work + '/moved')"),
    "go there and read it": Attack("os.chdir(outside); open('secret').read()"),
    "read it through a handle": Attack("name_to_handle(secret)", "root"),
    "run it as a program": Attack("os.execv(secret, [secret])", "never"),
    "list the folder of somebody else": Attack("os.listdir(outside)"),
    "list the root": Attack("os.listdir('/')"),
    "read the passwords": Attack("open('/etc/shadow').read()", "root"),
    "read the users": Attack("open('/etc/passwd').read()"),
    "read the environment of another process": Attack("open(f'/proc/{victim}/environ', 'rb').read()"),
    "read the environment of the first process": Attack("open('/proc/1/environ', 'rb').read()", "perhaps"),
    "read the memory of another process": Attack("open(f'/proc/{victim}/mem', 'rb').read(0)"),
    "read a descriptor that was left open": Attack("os.read(held, 1)"),
    "read another one through it": Attack("os.open('secret', os.O_RDONLY, dir_fd=held_folder)"),
    "write to a file of somebody else": Attack("open(secret, 'a').write('x')"),
    "make a file elsewhere": Attack("open(outside + '/' + name, 'w')"),
    "make a folder elsewhere": Attack("os.mkdir(outside + '/' + name)"),
    "delete a file of somebody else": Attack("os.unlink(secret + '3')"),
    "cut it off": Attack("os.truncate(secret + '4', 0)"),
    "write to shared memory": Attack("open('/dev/shm/' + name, 'w'); os.unlink('/dev/shm/' + name)"),
    "write to the temporary folder": Attack("open('/tmp/' + name, 'w'); os.unlink('/tmp/' + name)"),
    "write to a setting of the system": Attack("open('/proc/sys/kernel/hostname', 'r+').close()", "root"),
    "take a file for itself": Attack("os.chown(secret, os.getuid(), os.getgid())"),
    "change the mode of a file": Attack("os.chmod(secret, 0o600); os.chmod(secret, 0o644)"),
    "change it through a descriptor": Attack("os.fchmod(os.open(work, os.O_RDONLY), 0o700)"),
    "change the times of a file": Attack("os.utime(secret)"),
    "mark a file": Attack("os.setxattr(work, b'user.box', b'x')", "perhaps"),
    "make a program that runs as its user": Attack("os.open(work + '/p', os.O_CREAT | os.O_WRONLY, 0o4755)"),
    "make a pipe with a name": Attack("os.mkfifo(work + '/fifo')"),
    "make a device": Attack("os.mknod(work + '/null', 0o020666, os.makedev(1, 3))", "root"),
    "watch what others do with their files": Attack("syscall(NR['inotify_add_watch'], inotify, outside.encode(), 2)"),
}
SOCKETS: Final = {
    "connect over TCP": Attack("socket.create_connection(('127.0.0.1', tcp))"),
    "connect over TCP and IPv6": Attack("socket.socket(socket.AF_INET6, socket.SOCK_STREAM)"),
    "connect over multipath TCP": Attack("socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)", "perhaps"),
    "listen": Attack("socket.create_server(('127.0.0.1', 0))"),
    "send over UDP": Attack("socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', udp))"),
    "connect to a Unix socket": Attack("socket.socket(socket.AF_UNIX).connect(unix)"),
    "connect to an abstract one": Attack("socket.socket(socket.AF_UNIX).connect(abstract)"),
    "send a datagram to one, through a pair": Attack(
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', unix_datagrams)"
    ),
    "ask the kernel about the network": Attack("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"),
    "see every packet": Attack("socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", "root"),
    "send raw packets": Attack("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", "root"),
    "reach the hypervisor": Attack("socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)", "perhaps"),
    "use the cipher interface": Attack("socket.socket(38, socket.SOCK_SEQPACKET)", "perhaps"),
    "use Bluetooth": Attack("socket.socket(31, socket.SOCK_RAW, 1)", "perhaps"),
}
PROCESSES: Final = {
    "fork": Attack("pid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)"),
    "fork as the kernel calls it": Attack("pid = syscall(NR['clone'], 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)"),
    "fork by the newest call": Attack(
        "pid = syscall(NR['clone3'], struct.pack('=11Q', 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88)\nif pid == 0: os._exit(0)"
    ),
    "spawn": Attack("os.waitpid(os.posix_spawn('/bin/sh', ['sh', '-c', ':'], {}), 0)"),
    "become a shell": Attack("os.execv('/bin/sh', ['sh', '-c', 'exit 0'])"),
    "become one by descriptor": Attack(
        "syscall(NR['execveat'], os.open('/bin/sh', os.O_PATH), b'', 0, 0, 0x1000)", "never"
    ),
    "run a file in memory": Attack("os.memfd_create('program')"),
    "trace another process": Attack("syscall(NR['ptrace'], 16, victim, 0, 0)", "root"),
    "read its memory": Attack("syscall(NR['process_vm_readv'], victim, 0, 0, 0, 0, 0)"),
    "take its descriptors": Attack("syscall(NR['pidfd_getfd'], os.pidfd_open(victim), 0, 0)", "root"),
    "signal it": Attack("os.kill(victim, signal.SIGCONT)"),
    "signal everybody": Attack("os.kill(-1, 0)", "never"),
    "signal its thread": Attack("syscall(NR['tgkill'], victim, victim, signal.SIGCONT)"),
    "signal its thread, the old way": Attack("syscall(NR['tkill'], victim, signal.SIGCONT)"),
    "signal it by descriptor": Attack("signal.pidfd_send_signal(os.pidfd_open(victim), signal.SIGCONT)"),
    "signal its parent": Attack("os.kill(os.getppid(), 0)"),
    "send it a signal with a value": Attack(
        "syscall(NR['rt_sigqueueinfo'], victim, signal.SIGCONT, struct.pack('=iii', signal.SIGCONT, 0, -1) + bytes(116))"
    ),
    "have it signalled for a pipe": Attack("fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, victim)"),
    "have it signalled by ioctl": Attack("fcntl.ioctl(socket_pair.fileno(), 0x8901, struct.pack('=i', victim))"),
    "slow it down": Attack("os.setpriority(os.PRIO_PROCESS, victim, 19)"),
    "slow all of the user down": Attack(
        "os.setpriority(os.PRIO_USER, 0, os.getpriority(os.PRIO_PROCESS, 0))", "perhaps"
    ),
    "slow its group down": Attack("os.setpriority(os.PRIO_PGRP, 0, os.getpriority(os.PRIO_PROCESS, 0))", "perhaps"),
    "keep the user from the disk": Attack(_call("ioprio_set", 3, 0, 2 << 13 | 7), "never"),
    "keep its group from the disk": Attack(_call("ioprio_set", 2, 0, 2 << 13 | 7), "never"),
    "move it to one processor": Attack("os.sched_setaffinity(victim, os.sched_getaffinity(victim))"),
    "change how it is scheduled": Attack("os.sched_setscheduler(victim, os.SCHED_BATCH, os.sched_param(0))"),
    "lower its limits": Attack("resource.prlimit(victim, resource.RLIMIT_CORE, (0, 0))"),
    "raise its own limits": Attack(
        "[resource.setrlimit(resource.RLIMIT_NOFILE, (n, n)) for n in (100, 200)]", "perhaps"
    ),
    "become visible to debuggers": Attack("prctl(4, 1)"),
    "outlive its parent": Attack("prctl(1, 0)"),
}
KERNEL: Final = {
    "make namespaces": Attack("syscall(NR['unshare'], 0x10000000)"),
    "enter namespaces": Attack("syscall(NR['setns'], os.open(f'/proc/{victim}/ns/net', os.O_RDONLY), 0)", "root"),
    "mount": Attack("syscall(NR['mount'], b'none', work.encode(), b'tmpfs', 0, 0)", "never"),
    "mount by the new calls": Attack("syscall(NR['fsopen'], b'tmpfs', 0)", "root"),
    "change its root": Attack("os.chroot(work)", "root"),
    "load a program into the kernel": Attack(
        "syscall(NR['bpf'], 5, struct.pack('=IIII', 2, 4, 4, 1) + bytes(112), 128)", "perhaps"
    ),
    "submit work by io_uring": Attack("syscall(NR['io_uring_setup'], 1, bytes(120))"),
    "count events of others": Attack(
        "syscall(NR['perf_event_open'], struct.pack('=IIQ', 1, 112, 0) + bytes(96), 0, -1, -1, 0)", "perhaps"
    ),
    "handle page faults": Attack("syscall(NR['userfaultfd'], 1)", "perhaps"),
    "keep a key": Attack("syscall(NR['add_key'], b'user', b'box', b'x', 1, -1)"),
    "look for keys": Attack("syscall(NR['keyctl'], 0, -3, 1)"),
    "share memory by number": Attack("syscall(NR['shmget'], 0, 4096, 0o600)"),
    "open a queue by number": Attack("syscall(NR['msgget'], 0, 0o600)"),
    "use a semaphore by number": Attack("syscall(NR['semget'], 0, 1, 0o600)"),
    "open a queue by name": Attack(
        "syscall(NR['mq_open'], name.encode(), 0o102, 0o600, 0); syscall(NR['mq_unlink'], name.encode())"
    ),
    "write commands to a terminal": Attack("fcntl.ioctl(terminal, 0x5412, b'x')", "perhaps"),
    "set the clock": Attack("time.clock_settime(time.CLOCK_REALTIME, time.time())", "never"),
    "name the machine": Attack("socket.sethostname(socket.gethostname())", "root"),
    "restart the machine": Attack("syscall(NR['reboot'], 0, 0, 0, 0)", "never"),
    "read the log of the kernel": Attack("syscall(NR['syslog'], 3, bytes(64), 10)", "root"),
    "load a module": Attack("syscall(NR['init_module'], b'', 0, b'')", "never"),
    "switch off random addresses": Attack("syscall(NR['personality'], 0x0040000)"),
    "use a call that nobody looked at": Attack("syscall(4000, 0)", "never"),
    "filter its own calls": Attack("prctl(22, 1)", "never"),
}
FOREIGN: Final = {
    "call as a 32-bit program": Attack(
        "machine_code(bytes.fromhex('b814000000cd80c3'))", "never"
    ),  # mov eax, 20; int 0x80; ret
    "call as an x32 program": Attack("syscall(0x40000000 + 39)", "never"),
}
"""On x86_64 only: there the same process may call in two more conventions. A call in one of them ends the process."""
RESOURCES: Final = {
    "fill the memory": Attack("bytearray(1 << 30)"),
    "fill memory that is shared": Attack("mmap.mmap(-1, 1 << 30)"),
    "fill memory piece by piece": Attack("[bytearray(1 << 20) for _ in range(1024)]", "never"),
    "open every file": Attack("[os.pipe() for _ in range(300)]"),
    "write a large file": Attack("os.truncate(os.open(work + '/large', os.O_CREAT | os.O_RDWR), 1 << 31)"),
}
ATTACKS: Final = {**FILES, **SOCKETS, **PROCESSES, **KERNEL, **RESOURCES}

HARMLESS: Final = {
    "write to its own folder": "open(work + '/a', 'w').write('x'); os.rename(work + '/a', work + '/b'); assert open(work + '/b').read() == 'x'",
    "make and remove folders": "os.mkdir(work + '/d'); os.rmdir(work + '/d'); os.truncate(os.open(work + '/t', os.O_CREAT | os.O_RDWR), 1)",
    "start threads": "t = threading.Thread(target=open, args=(os.devnull,)); t.start(); t.join()",
    "run an event loop": "asyncio.run(asyncio.sleep(0))",
    "run an event loop with threads": "asyncio.run(asyncio.to_thread(int))",
    "talk to itself": "a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1) == b'x'",
    "be random": "os.urandom(8); open('/dev/urandom', 'rb').read(1)",
    "throw things away": "open('/dev/null', 'w').write('x')",
    "signal itself": "signal.signal(signal.SIGUSR1, lambda *_: None); os.kill(os.getpid(), signal.SIGUSR1); signal.raise_signal(signal.SIGUSR1)",
    "tell the time": "time.time(), time.localtime(), time.monotonic()",
    "use some memory": "bytearray(1 << 26)",
    "import what it has not imported": "import sqlite3, zoneinfo, decimal",
}
"""What everybody may do in a box, root or not."""
