// SPDX-License-Identifier: GPL-2.0
/*
 * Prints how many thousand cycles a second this processor's time stamp counter makes.
 *
 * An emulated guest sees that counter. It measures the rate at boot against a timer that QEMU emulates too, and comes
 * out wrong by up to a factor of ten where the processors are busy: its clock then runs so much too fast, and its time
 * limits end so much too early. So it is told (tsc_early_khz).
 */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

struct moment {
	uint64_t cycles;
	int64_t ns;
};

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_RAW, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Both at once: of many tries the one in which least time went by between the two looks at the counter. */
static struct moment look(void)
{
	struct moment best = {};
	uint64_t shortest = UINT64_MAX;

	for (int i = 0; i < 50; i++) {
		uint64_t before = __rdtsc();
		int64_t ns = now_ns();
		uint64_t took = __rdtsc() - before;

		if (took < shortest) {
			shortest = took;
			best = (struct moment){ before + took / 2, ns };
		}
	}
	return best;
}

int main(void)
{
	struct moment begin = look();
	struct timespec pause = { .tv_nsec = 20 * 1000 * 1000 };

	nanosleep(&pause, NULL);
	struct moment end = look();
	uint64_t us = (end.ns - begin.ns) / 1000;

	printf("%llu\n", (unsigned long long)((end.cycles - begin.cycles) * 1000 / us));
	return 0;
}
