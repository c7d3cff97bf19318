// SPDX-License-Identifier: GPL-2.0
/*
 * What a process at nice 19 that sleeps costs a counter at nice 0 on the same processor, while the
 * device carries out what it has posted. The measure is processor time by the guest's clocks: it
 * is the same however slow the guest is. And what it costs a process at nice 0 that reads from a
 * disk, compared with 1000 processes at nice 19 that spin.
 *
 * The process is a child. It connects queue pairs with each other, over the device's own address,
 * and posts more to them than is done in the time of the case.
 */

#include "common.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_user_rxe.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

/* The length of a request of one queue pair alone, and of one of many. */
#define LEN (4 << 20)
#define LEN_OF_MANY (1 << 20)
#define PAIRS 128
#define READS 250
/* The same, and the number of spinning processes, for the latency of a disk. */
#define PAIRS_BESIDE_A_DISK 500
#define SPINNERS 1000
/* How many times the disk is read at most, and for how long, in milliseconds. */
#define DISK_READS 4000
#define DISK_MS 10000
/* For how long the counter counts, alone and beside the process, in milliseconds. */
#define ALONE 1000
#define BESIDE 4000
/* How long the process may take to post, in milliseconds. */
#define IN_TIME (300000 * slow)
/* The least share of what it had alone, in percent. */
#define LEAST 40
/* The least share of all processors that the kernel's workers take meanwhile, in percent. */
#define BUSY 5

/* --- the process ------------------------------------------------------------------------------ */

static struct pair *pairs;
/* How many pairs read. */
static int reading = PAIRS;
/* How many pairs are connected, and how many lists of Reads are posted: both processes see them. */
static int *connected, *lists;

static uint8_t *memory(void)
{
	uint8_t *buf = mmap(NULL, LEN, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (buf == MAP_FAILED)
		_exit(3);
	return buf;
}

/* Registers so much of the same memory for an end. */
static struct ibv_mr *region_of(struct end *end, size_t len)
{
	static uint8_t *buf;
	struct ibv_mr *mr;

	if (!buf)
		buf = memory();
	mr = ibv_reg_mr(end->pd, buf, len, ALL_RIGHTS);
	if (!mr)
		_exit(5);
	return mr;
}

/* Posts so many requests, each for the whole region, from one end to the other, with one call. */
static void post_list(struct end *from, struct ibv_mr *mine, struct ibv_mr *theirs,
		      enum ibv_wr_opcode op, int requests)
{
	struct ibv_send_wr *wrs = calloc(requests, sizeof(*wrs)), *bad;
	struct ibv_sge sge = { .addr = (uintptr_t)mine->addr, .length = mine->length,
			       .lkey = mine->lkey };

	if (!wrs)
		_exit(5);
	for (int n = 0; n < requests; n++) {
		wrs[n] = wr_rdma(op, n, 0, &sge, 1, (uintptr_t)theirs->addr, theirs->rkey);
		wrs[n].next = n + 1 < requests ? &wrs[n + 1] : NULL;
	}
	if (ibv_post_send(from->qp, wrs, &bad))
		_exit(6);
	free(wrs);
}

static void open_pairs(int count, int requests)
{
	/* One Read at a time: the answer to a call's first Reads takes time from the call. */
	struct pair_opts opts = {
		.sq_depth = requests, .rq_depth = 1, .cq_depth = 16, .depth = 1
	};

	pairs = calloc(count, sizeof(*pairs));
	*connected = *lists = 0;
	for (int i = 0; i < count; i++, ++*connected)
		if (!pair_open(&pairs[i], &opts))
			_exit(test_cannot_start());
}

static void one_list_of_writes(void)
{
	open_pairs(1, 16000);
	post_list(&pairs->a, region_of(&pairs->a, LEN), region_of(&pairs->b, LEN),
		  IBV_WR_RDMA_WRITE, 16000);
}

/*
 * Each queue pair reads. The calls only send Read Requests; the device answers them, the
 * first part in softirq. All is registered before the first call, since that part takes time from
 * this process too.
 */
static void lists_of_reads(void)
{
	static struct ibv_mr *regions[PAIRS_BESIDE_A_DISK][2];

	open_pairs(reading, READS);
	for (int i = 0; i < reading; i++) {
		regions[i][0] = region_of(&pairs[i].a, LEN_OF_MANY);
		regions[i][1] = region_of(&pairs[i].b, LEN_OF_MANY);
	}
	for (int i = 0; i < reading; i++) {
		post_list(&pairs[i].a, regions[i][0], regions[i][1], IBV_WR_RDMA_READ, READS);
		post_list(&pairs[i].b, regions[i][1], regions[i][0], IBV_WR_RDMA_READ, READS);
		*lists += 2;
	}
}

/*
 * Turns all of the queue into new requests, for which no message is sent, before the device has
 * done the last ones; and then sleeps. It keeps its real-time priority, so that this goes on beside
 * any load.
 */
static void *refill(void *arg)
{
	struct rxe_queue_buf *q = arg;

	for (;;) {
		uint32_t taken = __atomic_load_n(&q->consumer_index, __ATOMIC_ACQUIRE);

		__atomic_store_n(&q->producer_index, (taken - 1) & q->index_mask, __ATOMIC_RELEASE);
		ring_doorbell(pairs->a.qp);
		sleep_ms(20);
	}
	return NULL;
}

#define COOKIE 0xabad1deaULL

static void ring_without_messages(void)
{
	struct rxe_queue_buf *q = NULL;
	struct mapping now[64];
	size_t n;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct region r;
	struct ibv_mw *window;
	struct ibv_wc wc;
	pthread_t thread;

	open_pairs(1, 32767);
	if (!region_make(&r, pairs->a.pd, 64, IBV_ACCESS_LOCAL_WRITE))
		_exit(4);
	sge = sge_of(&r, 0, 8);
	wr = wr_make(IBV_WR_RDMA_WRITE, COOKIE, IBV_SEND_SIGNALED, &sge, 0);
	if (!post_send(&pairs->a, &wr) || !expect_wc(pairs->a.send_cq, &wc, COOKIE, IBV_WC_SUCCESS))
		_exit(5);
	n = device_mappings(now, ARRAY_SIZE(now));
	for (size_t i = 0; i < n; i++) {
		struct rxe_queue_buf *found = (void *)now[i].start;

		/* Elements of completion queues have 64 octets. */
		if (found->log2_elem_size > 6 && *(uint64_t *)found->data == COOKIE)
			q = found;
	}
	window = ibv_alloc_mw(pairs->a.pd, IBV_MW_TYPE_2);
	if (!q || !window)
		_exit(6);
	for (uint32_t i = 0; i <= q->index_mask; i++) {
		struct rxe_send_wqe *e = (void *)(q->data + ((size_t)i << q->log2_elem_size));

		memset(e, 0, sizeof(*e));
		e->wr.opcode = IBV_WR_LOCAL_INV;
		e->wr.ex.invalidate_rkey = window->rkey;
	}
	if (pthread_create(&thread, NULL, refill, q))
		_exit(7);
}

/* --- the counter ------------------------------------------------------------------------------ */

static void pin(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(0, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		_exit(2);
}

static int64_t micros(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return ts.tv_sec * 1000000LL + ts.tv_nsec / 1000;
}

/* Counts for so long; returns the share of the processor in percent. `*count` is how far. */
static int64_t counted(int64_t ms, uint64_t *count)
{
	int64_t begin = micros(CLOCK_MONOTONIC), ran = micros(CLOCK_THREAD_CPUTIME_ID), now;

	*count = 0;
	do {
		for (volatile int i = 0; i < 10000; i++)
			;
		++*count;
		now = micros(CLOCK_MONOTONIC);
	} while (now - begin < ms * 1000);
	return (micros(CLOCK_THREAD_CPUTIME_ID) - ran) * 100 / (now - begin);
}

/* Returns the processor time of the kernel's workers, in ticks. */
static long worked(void)
{
	DIR *dir = opendir("/proc");
	struct dirent *entry;
	long sum = 0, user, system;
	char path[300], line[1024];

	while (dir && (entry = readdir(dir))) {
		FILE *file;
		char *rest;

		snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
		file = fopen(path, "r");
		if (file && fgets(line, sizeof(line), file) && strstr(line, "(kworker") &&
		    (rest = strrchr(line, ')')) &&
		    sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user,
			   &system) == 2)
			sum += user + system;
		if (file)
			fclose(file);
	}
	if (dir)
		closedir(dir);
	return sum;
}

static pid_t begin(void (*process)(void), int *tells)
{
	struct sched_param urgent = { .sched_priority = 1 }, usual = { 0 };
	struct rlimit files = { 65536, 65536 };
	int fds[2];
	pid_t pid;

	if (pipe(fds))
		return -1;
	pid = fork();
	if (pid) {
		close(fds[1]);
		*tells = fds[0];
		return pid;
	}
	close(fds[0]);
	pin();
	setrlimit(RLIMIT_NOFILE, &files);
	/* Until it sleeps it gets on whatever else the processor does. */
	sched_setscheduler(0, SCHED_FIFO, &urgent);
	process();
	sched_setscheduler(0, SCHED_OTHER, &usual);
	setpriority(PRIO_PROCESS, 0, 19);
	if (write(fds[1], "", 1) != 1)
		_exit(8);
	for (;;)
		pause();
}

static void keeps_its_share(void (*process)(void))
{
	uint64_t fast, slow_count;
	int64_t alone, beside, took;
	long before, busy;
	struct pollfd ready = { .events = POLLIN };
	int status;
	pid_t pid;
	char c;

	pin();
	alone = counted(ALONE, &fast);
	took = micros(CLOCK_MONOTONIC);
	pid = begin(process, &ready.fd);
	if (poll(&ready, 1, IN_TIME) == 1 && read(ready.fd, &c, 1) == 1) {
		printf("# posted after %lld ms\n",
		       (long long)(micros(CLOCK_MONOTONIC) - took) / 1000);
		sleep_ms(300);
		took = micros(CLOCK_MONOTONIC);
		before = worked();
		beside = counted(BESIDE, &slow_count);
		busy = worked() - before;
		took = micros(CLOCK_MONOTONIC) - took;
		busy = busy * (1000000 / sysconf(_SC_CLK_TCK)) * 100 / took;
		printf("# share %lld %% of %lld %%, speed %.1f %%, workers %ld %%\n",
		       (long long)beside, (long long)alone,
		       slow_count * 100.0 * ALONE / BESIDE / fast, busy);
		if (beside * 100 < alone * LEAST)
			fail("the counter kept %lld %% of a processor, of %lld %% alone",
			     (long long)beside, (long long)alone);
		if (busy < BUSY)
			fail("the workers took %ld %%: the device had nothing to do", busy);
	} else {
		fail("the process has not posted its requests after %lld ms: %d pairs, %d lists",
		     (long long)(micros(CLOCK_MONOTONIC) - took) / 1000, *connected, *lists);
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	close(ready.fd);
	if (WIFEXITED(status))
		printf("# the process: exit status %d\n", WEXITSTATUS(status));
}

/* --- a disk ----------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
	const int64_t *one = a, *other = b;

	return (*one > *other) - (*one < *other);
}

/*
 * Reads from the disk, whose timer ends a read after 0.2 ms, for so long; returns the latency of the
 * slowest of 100 reads, in microseconds.
 */
static int64_t disk_latency(void)
{
	static int64_t took[DISK_READS];
	int disk = open(getenv("DISK"), O_RDONLY | O_DIRECT), n = 0;
	int64_t begin = micros(CLOCK_MONOTONIC), now = begin;
	void *buf;

	if (disk < 0 || posix_memalign(&buf, 4096, 4096))
		return -1;
	for (; n < DISK_READS && now - begin < DISK_MS * 1000; n++) {
		int64_t began = now;

		if (pread(disk, buf, 4096, (off_t)(n % 1024) * 4096) != 4096)
			return -1;
		now = micros(CLOCK_MONOTONIC);
		took[n] = now - began;
	}
	close(disk);
	free(buf);
	qsort(took, n, sizeof(*took), by_size);
	return took[n * 99 / 100];
}

static void disk_is_read_alongside_1000_queue_pairs(void)
{
	static pid_t spinners[SPINNERS];
	int64_t alone = disk_latency(), spinning, queues = -1;
	long before, busy = 0;
	struct pollfd ready = { .events = POLLIN };
	pid_t pid;
	char c;

	for (int i = 0; i < SPINNERS; i++) {
		spinners[i] = fork();
		if (!spinners[i]) {
			setpriority(PRIO_PROCESS, 0, 19);
			for (;;)
				;
		}
	}
	sleep_ms(300);
	spinning = disk_latency();
	for (int i = 0; i < SPINNERS; i++)
		kill(spinners[i], SIGKILL);
	for (int i = 0; i < SPINNERS; i++)
		waitpid(spinners[i], NULL, 0);
	reading = PAIRS_BESIDE_A_DISK;
	pid = begin(lists_of_reads, &ready.fd);
	if (poll(&ready, 1, IN_TIME) == 1 && read(ready.fd, &c, 1) == 1) {
		sleep_ms(300);
		before = worked();
		queues = disk_latency();
		busy = worked() - before;
	} else {
		fail("the process has not posted its requests: %d pairs, %d lists", *connected,
		     *lists);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(ready.fd);
	printf("# the slowest of 100 reads: alone %lld us, beside processes %lld us, beside queue "
	       "pairs %lld us, workers %ld ticks\n",
	       (long long)alone, (long long)spinning, (long long)queues, busy);
	if (alone < 0 || spinning < 0 || queues < 0)
		fail("the disk cannot be read");
	else if (queues > spinning)
		fail("a disk is slower beside queue pairs");
	if (!busy)
		fail("the device had nothing to do");
}

static void one_queue_pair_that_writes(void) { keeps_its_share(one_list_of_writes); }
static void many_queue_pairs_that_read(void) { keeps_its_share(lists_of_reads); }
static void requests_without_messages(void) { keeps_its_share(ring_without_messages); }

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	connected = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (connected == MAP_FAILED)
		return test_cannot_start();
	lists = connected + 1;
	if (getenv("DISK")) {
		RUN(disk_is_read_alongside_1000_queue_pairs);
		return test_end();
	}
	RUN(one_queue_pair_that_writes);
	RUN(many_queue_pairs_that_read);
	if (has_extensions())
		RUN(requests_without_messages);
	return test_end();
}
