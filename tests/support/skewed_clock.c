/* For LD_PRELOAD: the clock of SKEWED_NODE ("login": outside of jobs) is off by SKEW_SECONDS. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

static long skew(void)
{
	const char *skewed = getenv("SKEWED_NODE"), *seconds = getenv("SKEW_SECONDS");
	const char *node = getenv("SLURMD_NODENAME");

	return skewed && seconds && !strcmp(skewed, node ? node : "login") ? atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	static int (*real)(clockid_t, struct timespec *);
	int code;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
	code = real(clock, now);
	if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		now->tv_sec += skew();
	return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec found;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &found);
	now->tv_sec = found.tv_sec;
	now->tv_usec = found.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *now)
{
	struct timespec found;

	clock_gettime(CLOCK_REALTIME, &found);
	if (now)
		*now = found.tv_sec;
	return found.tv_sec;
}
