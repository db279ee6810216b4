/* A librpmem that says what libpmemobj asks it for, and holds nothing. */

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static char pool;

void *rpmem_create(const char *target, const char *set, void *addr, size_t size, unsigned *lanes, const void *attributes)
{
	(void)addr, (void)size, (void)lanes, (void)attributes;
	printf("REMOTE\t%s\t%s\n", target, set);
	return &pool;
}

void *rpmem_open(const char *target, const char *set, void *addr, size_t size, unsigned *lanes, void *attributes)
{
	(void)target, (void)set, (void)addr, (void)size, (void)lanes, (void)attributes;
	return NULL;
}

int rpmem_set_attr(void *rpp, const void *attributes)
{
	(void)rpp, (void)attributes;
	return 0;
}

int rpmem_close(void *rpp)
{
	(void)rpp;
	return 0;
}

int rpmem_persist(void *rpp, size_t offset, size_t length, unsigned lane, unsigned flags)
{
	(void)rpp, (void)offset, (void)length, (void)lane, (void)flags;
	return 0;
}

int rpmem_deep_persist(void *rpp, size_t offset, size_t length, unsigned lane)
{
	(void)rpp, (void)offset, (void)length, (void)lane;
	return 0;
}

int rpmem_read(void *rpp, void *buffer, size_t offset, size_t length, unsigned lane)
{
	(void)rpp, (void)offset, (void)lane;
	memset(buffer, 0, length);
	return 0;
}

int rpmem_remove(const char *target, const char *set, int flags)
{
	(void)target, (void)set, (void)flags;
	return 0;
}
