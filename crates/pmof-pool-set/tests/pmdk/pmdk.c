/* What the tests ask of PMDK's own libraries: one command a run, what they say on standard output, 0 where they agree. */

#include <libpmemblk.h>
#include <libpmemlog.h>
#include <libpmemobj.h>
#include <libpmempool.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>

#define COUNT 512

struct root {
	uint64_t sum;
	PMEMoid objects[COUNT];
};

static int failed(const char *what, const char *why)
{
	printf("%s: %s\n", what, why);
	return 1;
}

static int check(const char *path)
{
	struct pmempool_check_args args = {
		.path = path,
		.backup_path = NULL,
		.pool_type = PMEMPOOL_POOL_TYPE_DETECT,
		.flags = PMEMPOOL_CHECK_VERBOSE | PMEMPOOL_CHECK_FORMAT_STR,
	};
	PMEMpoolcheck *check = pmempool_check_init(&args, sizeof(args));
	if (check == NULL)
		return failed("pmempool_check_init", pmempool_errormsg());
	struct pmempool_check_status *status;
	while ((status = pmempool_check(check)) != NULL)
		printf("%s\n", status->str.msg);
	enum pmempool_check_result result = pmempool_check_end(check);
	printf("result %d\n", result);
	return result == PMEMPOOL_CHECK_RESULT_CONSISTENT ? 0 : 1;
}

/* Allocates and frees in transactions, and keeps the sum of what is there. */
static int work(PMEMobjpool *pool, unsigned seed)
{
	PMEMoid oid = pmemobj_root(pool, sizeof(struct root));
	if (OID_IS_NULL(oid))
		return failed("pmemobj_root", pmemobj_errormsg());
	struct root *root = pmemobj_direct(oid);
	/* Another sequence each time: the same would undo itself. */
	seed += (unsigned)root->sum;
	for (int step = 0; step < 400; step++) {
		seed = seed * 1103515245 + 12345;
		int slot = (seed >> 16) % COUNT;
		uint64_t value = seed;
		TX_BEGIN(pool) {
			pmemobj_tx_add_range_direct(&root->sum, sizeof(root->sum));
			pmemobj_tx_add_range_direct(&root->objects[slot], sizeof(PMEMoid));
			if (OID_IS_NULL(root->objects[slot])) {
				root->objects[slot] = pmemobj_tx_zalloc(64 + seed % 3000, 1);
				*(uint64_t *)pmemobj_direct(root->objects[slot]) = value;
				root->sum += value;
			} else {
				root->sum -= *(uint64_t *)pmemobj_direct(root->objects[slot]);
				pmemobj_tx_free(root->objects[slot]);
				root->objects[slot] = OID_NULL;
			}
		} TX_ONABORT {
			return failed("transaction", pmemobj_errormsg());
		} TX_END
	}
	return 0;
}

static int verify(PMEMobjpool *pool)
{
	PMEMoid oid = pmemobj_root(pool, sizeof(struct root));
	struct root *root = pmemobj_direct(oid);
	uint64_t sum = 0;
	int count = 0;
	for (int slot = 0; slot < COUNT; slot++) {
		if (!OID_IS_NULL(root->objects[slot])) {
			sum += *(uint64_t *)pmemobj_direct(root->objects[slot]);
			count++;
		}
	}
	printf("%d objects\n", count);
	return sum == root->sum && count > 0 ? 0 : failed("the sum", "is wrong");
}

/* Objects of aligned classes, some of which are freed, and some never come to be but were written. */
static int aligned(const char *path)
{
	PMEMobjpool *pool = pmemobj_create(path, "aligned", 0, 0600);
	if (pool == NULL)
		return failed("pmemobj_create", pmemobj_errormsg());
	static const enum pobj_header_type headers[] = {POBJ_HEADER_NONE, POBJ_HEADER_COMPACT, POBJ_HEADER_LEGACY};
	for (int index = 0; index < 6; index++) {
		enum pobj_header_type header = headers[index / 2];
		/* No two classes may be of one header and one length. */
		struct pobj_alloc_class_desc class = {
			.unit_size = index % 2 ? 4096 : 2048, .alignment = index % 2 ? 4096 : 64,
			.units_per_block = 60, .header_type = header,
		};
		if (pmemobj_ctl_set(pool, "heap.alloc_class.new.desc", &class) != 0)
			return failed("heap.alloc_class.new.desc", pmemobj_errormsg());
		size_t len = class.unit_size - (header == POBJ_HEADER_NONE ? 0 : header == POBJ_HEADER_COMPACT ? 16 : 64);
		PMEMoid objects[70];
		for (int at = 0; at < 70; at++) {
			if (pmemobj_xalloc(pool, &objects[at], len, 1, POBJ_CLASS_ID(class.class_id), NULL, NULL) != 0)
				return failed("pmemobj_xalloc", pmemobj_errormsg());
			if ((uintptr_t)pmemobj_direct(objects[at]) % class.alignment != 0)
				return failed("an object", "is not aligned");
			pmemobj_memset_persist(pool, pmemobj_direct(objects[at]), at + 1, len);
		}
		for (int at = 0; at < 70; at += 2)
			pmemobj_free(&objects[at]);
		for (int at = 0; at < 20; at++) {
			struct pobj_action action;
			PMEMoid reserved = pmemobj_xreserve(pool, &action, len, 1, POBJ_CLASS_ID(class.class_id));
			memset(pmemobj_direct(reserved), 0xee, len);
			pmemobj_cancel(pool, &action, 1);
		}
	}
	pmemobj_close(pool);
	return 0;
}

/* Objects of each header in runs of one chunk and of several, aligned and not, of the built-in classes, and of whole chunks. */
#define KINDS 28
#define EACH 3
#define CUSTOM 14

struct kinds {
	PMEMoid objects[KINDS][EACH];
};

static int custom_classes(PMEMobjpool *pool, struct pobj_alloc_class_desc *classes)
{
	static const enum pobj_header_type headers[] = {POBJ_HEADER_NONE, POBJ_HEADER_COMPACT, POBJ_HEADER_LEGACY};
	/* Length, alignment, count: runs of one chunk; of two or more; with more blocks than a fixed bitmap has bits. */
	static const size_t shapes[][3] = {{2048, 0, 60}, {4096, 4096, 40}, {163840, 0, 4}, {229376, 64, 4}};
	int count = 0;
	for (int header = 0; header < 3; header++) {
		for (int shape = 0; shape < 4; shape++) {
			classes[count++] = (struct pobj_alloc_class_desc){
				.unit_size = shapes[shape][0], .alignment = shapes[shape][1],
				.units_per_block = shapes[shape][2], .header_type = headers[header],
			};
		}
	}
	classes[count++] = (struct pobj_alloc_class_desc){.unit_size = 64, .units_per_block = 9000, .header_type = POBJ_HEADER_NONE};
	classes[count++] = (struct pobj_alloc_class_desc){.unit_size = 72, .units_per_block = 500, .header_type = POBJ_HEADER_LEGACY};
	for (int at = 0; at < count; at++) {
		if (pmemobj_ctl_set(pool, "heap.alloc_class.new.desc", &classes[at]) != 0)
			return failed("heap.alloc_class.new.desc", pmemobj_errormsg());
	}
	return 0;
}

static int make_kind(PMEMobjpool *pool, struct kinds *kinds, const struct pobj_alloc_class_desc *classes, int kind)
{
	static const size_t lengths[KINDS - CUSTOM] = {
		1, 100, 200, 500, 1000, 3000, 9000, 20000, 40000, 70000, 80000, 90000, 100000, 2800000,
	};
	for (int at = 0; at < EACH; at++) {
		/* What an object holds before it is written is not replicated: the library uses free blocks for itself. */
		uint64_t flags = POBJ_XALLOC_ZERO;
		size_t len = kind < CUSTOM ? classes[kind].unit_size : lengths[kind - CUSTOM];
		if (kind < CUSTOM) {
			flags |= POBJ_CLASS_ID(classes[kind].class_id);
			len -= classes[kind].header_type == POBJ_HEADER_NONE ? 0
				: classes[kind].header_type == POBJ_HEADER_COMPACT ? 16 : 64;
		}
		if (pmemobj_xalloc(pool, &kinds->objects[kind][at], len, kind + 1, flags, NULL, NULL) != 0)
			return failed("pmemobj_xalloc", pmemobj_errormsg());
	}
	return 0;
}

/* `number`: which kind is made; all of them, and some are freed again, where it is none. */
static int make_kinds(const char *path, const char *number)
{
	PMEMobjpool *pool = *number == 0 ? pmemobj_create(path, "kinds", 0, 0600) : pmemobj_open(path, "kinds");
	if (pool == NULL)
		return failed("the pool", pmemobj_errormsg());
	struct kinds *kinds = pmemobj_direct(pmemobj_root(pool, sizeof(struct kinds)));
	struct pobj_alloc_class_desc classes[CUSTOM];
	int first = atoi(number), last = *number == 0 ? KINDS - 1 : first;
	if (custom_classes(pool, classes) != 0)
		return 1;
	for (int kind = first; kind <= last; kind++) {
		if (make_kind(pool, kinds, classes, kind) != 0)
			return 1;
		if (*number == 0)
			pmemobj_free(&kinds->objects[kind][1]);
	}
	pmemobj_close(pool);
	return 0;
}

/* Looks at all objects, frees some, makes others, and says where they are. */
static int walk_kinds(const char *path)
{
	/* Damage makes it go round for ever, or die. */
	setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_usec = 500000}, NULL);
	setrlimit(RLIMIT_CORE, &(struct rlimit){0});
	PMEMobjpool *pool = pmemobj_open(path, "kinds");
	if (pool == NULL)
		return failed("pmemobj_open", pmemobj_errormsg());
	struct kinds *kinds = pmemobj_direct(pmemobj_root(pool, sizeof(struct kinds)));
	struct pobj_alloc_class_desc classes[CUSTOM];
	if (custom_classes(pool, classes) != 0)
		return 1;
	PMEMoid oid;
	POBJ_FOREACH(pool, oid)
		printf("%lx is of %ld\n", oid.off, (long)pmemobj_type_num(oid));
	for (int kind = 0; kind < KINDS; kind++) {
		for (int at = 0; at < EACH; at++) {
			PMEMoid *object = &kinds->objects[kind][at];
			if (OID_IS_NULL(*object))
				continue;
			printf("%d.%d: %lx, %zu\n", kind, at, object->off, pmemobj_alloc_usable_size(*object));
			if (at % 2 == 0)
				pmemobj_free(object);
		}
	}
	fflush(stdout);
	for (int kind = 0; kind < KINDS; kind++) {
		struct kinds *again = kinds;
		if (make_kind(pool, again, classes, kind) != 0)
			return 1;
		for (int at = 0; at < EACH; at++)
			printf("%d.%d: now %lx\n", kind, at, kinds->objects[kind][at].off);
	}
	for (int kind = KINDS - 1; kind >= 0; kind--) {
		for (int at = 0; at < EACH; at++)
			pmemobj_free(&kinds->objects[kind][at]);
	}
	pmemobj_close(pool);
	return 0;
}

static int obj(const char *command, const char *path, const char *layout)
{
	int is_new = strcmp(command, "obj-create") == 0;
	PMEMobjpool *pool = is_new ? pmemobj_create(path, layout, 0, 0600) : pmemobj_open(path, layout);
	if (pool == NULL)
		return failed(command, pmemobj_errormsg());
	int outcome = strcmp(command, "obj-verify") == 0 ? verify(pool) : work(pool, is_new ? 1 : 2);
	pmemobj_close(pool);
	return outcome;
}

static int create(const char *path)
{
	PMEMobjpool *pool = pmemobj_create(path, "test", 0, 0600);
	if (pool == NULL)
		return failed("pmemobj_create", pmemobj_errormsg());
	pmemobj_close(pool);
	return 0;
}

static int print(const void *bytes, size_t len, void *arg)
{
	(void)arg;
	fwrite(bytes, 1, len, stdout);
	return 1;
}

static int log_pool(const char *command, const char *path, const char *text)
{
	int is_new = strcmp(command, "log-create") == 0;
	PMEMlogpool *pool = is_new ? pmemlog_create(path, 0, 0600) : pmemlog_open(path);
	if (pool == NULL)
		return failed(command, pmemlog_errormsg());
	int outcome = pmemlog_append(pool, text, strlen(text));
	if (outcome != 0)
		failed("pmemlog_append", pmemlog_errormsg());
	pmemlog_walk(pool, 0, print, NULL);
	pmemlog_close(pool);
	return outcome;
}

static int blk_pool(const char *path, const char *text)
{
	char block[512] = {0};
	char found[512] = {0};
	PMEMblkpool *pool = pmemblk_open(path, sizeof(block));
	if (pool == NULL)
		return failed("pmemblk_open", pmemblk_errormsg());
	strncpy(block, text, sizeof(block) - 1);
	int outcome = pmemblk_write(pool, block, 7) || pmemblk_read(pool, found, 7);
	if (outcome != 0 || memcmp(block, found, sizeof(block)) != 0)
		outcome = failed("pmemblk", pmemblk_errormsg());
	printf("%zu blocks\n", pmemblk_nblock(pool));
	pmemblk_close(pool);
	return outcome;
}

/* Only opens and closes. */
static int open_only(const char *command, const char *path)
{
	if (strcmp(command, "open-obj") == 0) {
		PMEMobjpool *pool = pmemobj_open(path, NULL);
		if (pool == NULL)
			return failed(command, pmemobj_errormsg());
		pmemobj_close(pool);
	} else if (strcmp(command, "open-log") == 0) {
		PMEMlogpool *pool = pmemlog_open(path);
		if (pool == NULL)
			return failed(command, pmemlog_errormsg());
		pmemlog_close(pool);
	} else {
		PMEMblkpool *pool = pmemblk_open(path, 0);
		if (pool == NULL)
			return failed(command, pmemblk_errormsg());
		pmemblk_close(pool);
	}
	return 0;
}

#define BLK_BYTES PMEMBLK_MIN_POOL
#define BLK_THREADS 4

static PMEMblkpool *shared;

/* Writes all over the pool, without end if told so. */
static void *fill(void *arg)
{
	unsigned seed = *(unsigned *)arg;
	unsigned count = (unsigned)pmemblk_nblock(shared);
	char block[512];
	for (int step = 0; *(unsigned *)arg > BLK_THREADS || step < 200; step++) {
		seed = seed * 1103515245 + 12345;
		memset(block, (int)seed, sizeof(block));
		long long number = (seed >> 8) % count;
		if (step % 50 == 7 ? pmemblk_set_zero(shared, number)
				   : step % 50 == 9 ? pmemblk_set_error(shared, number)
						    : pmemblk_write(shared, block, number))
			exit(failed("writing a block", pmemblk_errormsg()));
	}
	return NULL;
}

static int blk_fill(const char *command, const char *path)
{
	static unsigned seeds[BLK_THREADS];
	int is_endless = strcmp(command, "blk-endless") == 0;
	shared = is_endless ? pmemblk_open(path, 512) : pmemblk_create(path, 512, BLK_BYTES, 0600);
	if (shared == NULL)
		return failed(command, pmemblk_errormsg());
	pthread_t threads[BLK_THREADS];
	for (unsigned index = 0; index < BLK_THREADS; index++) {
		seeds[index] = index + 1 + (is_endless ? BLK_THREADS : 0);
		if (pthread_create(&threads[index], NULL, fill, &seeds[index]) != 0)
			return failed(command, "no thread");
	}
	puts("at work");
	fflush(stdout);
	for (int index = 0; index < BLK_THREADS; index++)
		pthread_join(threads[index], NULL);
	pmemblk_close(shared);
	return 0;
}

int main(int argc, char **argv)
{
	const char *command = argc > 2 ? argv[1] : "";
	const char *path = argc > 2 ? argv[2] : "";
	const char *other = argc > 3 ? argv[3] : "";
	if (strcmp(command, "check") == 0)
		return check(path);
	if (strcmp(command, "create") == 0)
		return create(path);
	if (strncmp(command, "open-", 5) == 0)
		return open_only(command, path);
	if (strcmp(command, "obj-aligned") == 0)
		return aligned(path);
	if (strcmp(command, "kinds-make") == 0)
		return make_kinds(path, other);
	if (strcmp(command, "kinds-walk") == 0)
		return walk_kinds(path);
	if (strncmp(command, "obj-", 4) == 0)
		return obj(command, path, other);
	if (strncmp(command, "log-", 4) == 0)
		return log_pool(command, path, other);
	if (strcmp(command, "blk") == 0)
		return blk_pool(path, other);
	if (strncmp(command, "blk-", 4) == 0)
		return blk_fill(command, path);
	if (strcmp(command, "sync") == 0)
		return pmempool_sync(path, 0) ? failed("pmempool_sync", pmempool_errormsg()) : 0;
	if (strcmp(command, "transform") == 0)
		return pmempool_transform(path, other, 0) ? failed("pmempool_transform", pmempool_errormsg()) : 0;
	if (strcmp(command, "rm") == 0)
		return pmempool_rm(path, 0) ? failed("pmempool_rm", pmempool_errormsg()) : 0;
	return failed(command, "is no command");
}
