// SPDX-License-Identifier: GPL-2.0
/*
 * The init of a guest. It mounts the guest root, sets the system up, runs the script, and leaves
 * the script's status and the kernel's log where qemu/run finds them.
 *
 * One program instead of a script, since each process that a guest starts under emulation costs
 * a tenth of a second.
 *
 * /run/job is a directory of the host, mounted read-write:
 *   args        the script and its arguments, each ended by a NUL         (from qemu/run)
 *   ready, go   this guest is up; all guests are up                       (to, from qemu/run)
 *   kernel.log  the kernel's log, as it grows                             (to qemu/run)
 *   status      the exit status of the script, or "timeout"               (to qemu/run)
 *   release     all guests are done                                       (from qemu/run)
 *   restart     the guest is about to restart itself                      (from the script)
 * The environment, which is what the kernel's command line holds beyond the kernel's own
 * parameters, has GUEST, NGUESTS, and TIMEOUT in seconds.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char ready[] = "/run/job/ready", restart[] = "/run/job/restart";
static const char *guest, *nguests;
static int kmsg = -1, kernel_log = -1, port = -1;

static void say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("riwarp-init: ");
	vprintf(format, args);
	printf(": %m\n");
	va_end(args);
}

static void put(const char *file, const char *text)
{
	int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		say("write %s", file);
	close(fd);
}

static void nap(long ms)
{
	nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

static void attach(const char *what, const char *dir, const char *type, unsigned long flags,
		   const char *options)
{
	mkdir(dir, 0755);
	if (mount(what, dir, type, flags, options))
		say("mount %s on %s", what, dir);
}

/* Files that do not change while the guest runs may be cached, others may not. */
static void attach_9p(const char *tag, const char *dir, unsigned long flags)
{
	char options[128];

	snprintf(options, sizeof(options), "trans=virtio,version=9p2000.L,msize=262144,cache=%s",
		 flags & MS_RDONLY ? "loose" : "none");
	attach(tag, dir, "9p", flags, options);
}

/* Loads what the kernel lacks, in the order that the initramfs was made with. */
static void load_modules(void)
{
	char name[256], *end;
	FILE *order = fopen("/ko/order", "r");

	while (order && fgets(name, sizeof(name), order)) {
		int fd;

		if ((end = strchr(name, '\n')))
			*end = 0;
		fd = open(name, O_RDONLY | O_CLOEXEC);
		if (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST)
			say("load %s", name);
		close(fd);
	}
	if (order)
		fclose(order);
}

static void enter_root(void)
{
	attach_9p("root", "/lower", MS_RDONLY);
	attach_9p("modules", "/modules", MS_RDONLY);
	attach("rw", "/rw", "tmpfs", 0, "mode=755");
	mkdir("/rw/upper", 0755);
	mkdir("/rw/work", 0755);
	attach("overlay", "/root", "overlay", 0,
	       "lowerdir=/modules:/lower,upperdir=/rw/upper,workdir=/rw/work");
	if (chdir("/root") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
		say("enter the root");
}

/* The first connection of each family has the kernel patch its code, right after. */
static void connect_once(void)
{
	struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons(1) };
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(1) };
	int s4 = socket(AF_INET, SOCK_STREAM, 0), s6 = socket(AF_INET6, SOCK_STREAM, 0);

	four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	six.sin6_addr = in6addr_loopback;
	/* Nobody listens. */
	if (!connect(s4, (struct sockaddr *)&four, sizeof(four)) ||
	    !connect(s6, (struct sockaddr *)&six, sizeof(six)))
		say("connect to nobody");
	close(s4);
	close(s6);
	nap(20);
}

/*
 * The kernel boots with one processor: that is quicker under emulation, and QEMU's processors now and then
 * see code as it was while the kernel patched it, which it does most of all while it boots.
 */
static void start_processors(void)
{
	char file[64];
	long n = sysconf(_SC_NPROCESSORS_CONF);

	for (long k = 1; k < n; k++) {
		snprintf(file, sizeof(file), "/sys/devices/system/cpu/cpu%ld/online", k);
		put(file, "1");
	}
}

static void mount_all(void)
{
	glob_t found;

	attach("dev", "/dev", "devtmpfs", 0, NULL);
	attach("proc", "/proc", "proc", 0, NULL);
	attach("sys", "/sys", "sysfs", 0, NULL);
	attach("run", "/run", "tmpfs", 0, "mode=755");
	attach("tmp", "/tmp", "tmpfs", 0, "mode=1777");
	attach("shm", "/dev/shm", "tmpfs", 0, "mode=1777");
	attach("devpts", "/dev/pts", "devpts", 0, "ptmxmode=666");
	attach("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL);
	attach("tracefs", "/sys/kernel/tracing", "tracefs", 0, NULL);
	attach("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, NULL);
	attach("configfs", "/sys/kernel/config", "configfs", 0, NULL);
	if (symlink("/proc/self/fd", "/dev/fd") || symlink("fd/0", "/dev/stdin") ||
	    symlink("fd/1", "/dev/stdout") || symlink("fd/2", "/dev/stderr"))
		say("links in /dev");

	attach_9p("job", "/run/job", 0);
	attach_9p("out", "/mnt/out", 0);
	attach_9p("script", "/run/script", MS_RDONLY);
	attach_9p("checkout", "/riwarp", MS_RDONLY);
	if (getenv("SHARE"))
		attach_9p("share", "/mnt/share", MS_RDONLY);

	kmsg = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	kernel_log = open("/run/job/kernel.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (!glob("/dev/vport*", 0, NULL, &found))
		port = open(found.gl_pathv[0], O_WRONLY | O_CLOEXEC);
	if (kmsg < 0 || kernel_log < 0 || port < 0)
		say("open the logs");
}

/* eth0 is 10.77.0.GUEST and fd77::GUEST; no waiting for duplicates of IPv6 addresses. */
static void bring_up_network(void)
{
	struct { struct in6_addr addr; __u32 prefix; int index; } six = { .prefix = 64 };
	int s4 = socket(AF_INET, SOCK_DGRAM, 0), s6 = socket(AF_INET6, SOCK_DGRAM, 0), bad = 0;
	struct ifreq ifr = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	struct sockaddr_in *four = (struct sockaddr_in *)&ifr.ifr_addr;
	char text[32];

	sethostname(text, snprintf(text, sizeof(text), "g%s", guest));
	bad |= ioctl(s4, SIOCSIFFLAGS, &ifr);
	/* Nobody else is on these networks: an address need not be looked for before it may be used. */
	put("/proc/sys/net/ipv6/conf/eth0/accept_dad", "0");
	put("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
	put("/proc/sys/net/core/devconf_inherit_init_net", "1");

	strcpy(ifr.ifr_name, "eth0");
	four->sin_family = AF_INET;
	four->sin_port = 0;
	snprintf(text, sizeof(text), "10.77.0.%s", guest);
	inet_pton(AF_INET, text, &four->sin_addr);
	bad |= ioctl(s4, SIOCSIFADDR, &ifr);
	inet_pton(AF_INET, "255.255.255.0", &four->sin_addr);
	bad |= ioctl(s4, SIOCSIFNETMASK, &ifr);
	inet_pton(AF_INET, "10.77.0.255", &four->sin_addr);
	bad |= ioctl(s4, SIOCSIFBRDADDR, &ifr);
	ifr.ifr_flags = IFF_UP;
	bad |= ioctl(s4, SIOCSIFFLAGS, &ifr);

	snprintf(text, sizeof(text), "fd77::%x", atoi(guest));
	inet_pton(AF_INET6, text, &six.addr);
	six.index = if_nametoindex("eth0");
	bad |= ioctl(s6, SIOCSIFADDR, &six);
	if (bad)
		say("bring up the network");
	close(s4);
	close(s6);
}

/* Copies what is new in the kernel's log, without the fields that only machines read. */
static void pump_kernel_log(void)
{
	char record[8192], line[8300];
	unsigned long long usec;
	ssize_t len;
	char *text;

	for (;;) {
		len = read(kmsg, record, sizeof(record) - 1);
		if (len < 0 && errno == EPIPE)
			continue; /* Records were overwritten; go on with the oldest. */
		if (len <= 0)
			return;
		record[len] = 0;
		text = strchr(record, ';');
		if (!text || sscanf(record, "%*u,%*u,%llu", &usec) != 1)
			continue;
		text[1 + strcspn(text + 1, "\n")] = 0;
		len = snprintf(line, sizeof(line), "[%5llu.%06llu] %s\n", usec / 1000000,
			       usec % 1000000, text + 1);
		if (write(kernel_log, line, len) < 0)
			say("write the kernel's log");
	}
}

static void pump_output(int output)
{
	char data[16384];
	ssize_t len, done, n;

	while ((len = read(output, data, sizeof(data))) > 0)
		for (done = 0; done < len; done += n)
			if ((n = write(port, data + done, len - done)) < 0)
				return say("write the output");
}

static pid_t start_script(int output)
{
	static char args[65536];
	char *argv[1026], *next = args;
	int fd = open("/run/job/args", O_RDONLY), n = 1;
	ssize_t len = read(fd, args, sizeof(args) - 1);
	pid_t pid;

	close(fd);
	/* argv[0] is left free for a shell. */
	while (next < args + len && n < 1024) {
		argv[n++] = next;
		next += strlen(next) + 1;
	}
	argv[n] = NULL;

	pid = fork();
	if (pid)
		return pid;
	sigprocmask(SIG_SETMASK, &(sigset_t){}, NULL);
	setsid();
	setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ RLIM_INFINITY, RLIM_INFINITY });
	dup2(open("/dev/null", O_RDWR), 0);
	dup2(output, 1);
	dup2(output, 2);
	clearenv();
	setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
	setenv("HOME", "/root", 1);
	setenv("LC_ALL", "C.UTF-8", 1);
	setenv("GUEST", guest, 1);
	setenv("NGUESTS", nguests, 1);
	if (chdir("/tmp"))
		say("enter /tmp");
	execv(argv[1], argv + 1);
	argv[0] = "bash";
	execv("/bin/bash", argv);
	_exit(127);
}

/* Returns the script's exit status as a shell would say it, or -1 when its time was up. */
static int run_script(int timeout)
{
	struct timespec end, now;
	struct pollfd fds[3];
	int output[2], status, result = -1;
	sigset_t chld;
	pid_t script, pid;

	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_BLOCK, &chld, NULL);
	/* A pipe, since the port opens only once and scripts like to open /dev/stdout. */
	if (pipe2(output, O_CLOEXEC))
		say("pipe");
	script = start_script(output[1]);
	fcntl(output[0], F_SETFL, O_NONBLOCK);
	fds[0] = (struct pollfd){ .fd = output[0], .events = POLLIN };
	fds[1] = (struct pollfd){ .fd = kmsg, .events = POLLIN };
	fds[2] = (struct pollfd){ .fd = signalfd(-1, &chld, SFD_NONBLOCK | SFD_CLOEXEC),
				  .events = POLLIN };
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += timeout;
	do {
		struct signalfd_siginfo info;

		poll(fds, 3, 1000);
		while (read(fds[2].fd, &info, sizeof(info)) > 0)
			;
		while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
			if (pid == script)
				result = WIFEXITED(status) ? WEXITSTATUS(status) :
							     128 + WTERMSIG(status);
		pump_output(output[0]);
		pump_kernel_log();
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (result < 0 && now.tv_sec < end.tv_sec);
	if (result < 0) {
		/* What everybody waits for, and where the processors are, into the log. It is
		 * no report; qemu/verdict looks for those before this line only. */
		put("/dev/kmsg", "riwarp-init: time out\n");
		put("/proc/sysrq-trigger", "w");
		put("/proc/sysrq-trigger", "l");
		nap(300);
	}
	return result;
}

/* Waits for qemu/run to make a file. Each look takes time from the other guests. */
static void wait_for(const char *file, long pause_ms)
{
	while (access(file, F_OK))
		nap(pause_ms);
}

/* What a kernel with kmemleak has not accounted for; objects must be 5 seconds old to count. */
static void report_leaks(const char *leaks)
{
	char text[4096];
	ssize_t len;
	int fd;

	put(leaks, "scan");
	nap(6000);
	put(leaks, "scan");
	fd = open(leaks, O_RDONLY);
	while ((len = read(fd, text, sizeof(text))) > 0)
		if (write(kernel_log, text, len) < 0)
			break;
	close(fd);
}

int main(void)
{
	static const char leaks[] = "/sys/kernel/debug/kmemleak";
	bool together, leak_check;
	char text[16] = "timeout";
	int status;

	setvbuf(stdout, NULL, _IOLBF, 0);
	guest = getenv("GUEST");
	nguests = getenv("NGUESTS");
	together = atoi(nguests) > 1;

	load_modules();
	enter_root();
	mount_all();
	/* Restarted by a panic: dead, that is. */
	if (!access(ready, F_OK) && unlink(restart))
		reboot(RB_POWER_OFF);
	/* A busy host must not look like a hung guest. */
	put("/proc/sys/kernel/watchdog_thresh", "30");
	bring_up_network();
	connect_once();
	start_processors();
	leak_check = !access(leaks, F_OK);
	if (leak_check)
		put(leaks, "clear");
	put(ready, "");
	if (together)
		wait_for("/run/job/go", 20);

	status = run_script(atoi(getenv("TIMEOUT")));

	if (status >= 0 && leak_check)
		report_leaks(leaks);
	if (status >= 0)
		snprintf(text, sizeof(text), "%d", status);
	pump_kernel_log();
	put("/run/job/status.new", text);
	rename("/run/job/status.new", "/run/job/status");
	/* The network lives until every guest is done. */
	if (together)
		wait_for("/run/job/release", 300);
	sync();
	reboot(RB_POWER_OFF);
	return 0;
}
